//! Answers as sent: documents and errors of the services.

use super::error::ApiError;
use super::operation::Service;
use super::sqs;
use super::xml::Xml;

const AUTO_SCALING_NAMESPACE: &str = "http://autoscaling.amazonaws.com/doc/2011-01-01/";
/// Calls whose response has no result element.
///
/// <https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_SetDesiredCapacity.html> and their own pages
const VOID: [&str; 5] = [
    "CreateOrUpdateTags",
    "ResumeProcesses",
    "SetDesiredCapacity",
    "SuspendProcesses",
    "UpdateAutoScalingGroup",
];

/// Where EKS puts the code of an error.
///
/// <https://smithy.io/2.0/aws/protocols/aws-restjson1-protocol.html#operation-error-serialization>
const ERROR_TYPE: &str = "x-amzn-errortype";
/// Where SQS puts the code that an error had in its old protocol, and whose fault it is.
///
/// <https://smithy.io/2.0/aws/protocols/aws-query-protocol.html#x-amzn-query-error-header>
const QUERY_ERROR: &str = "x-amzn-query-error";

const LOAD_BALANCING_NAMESPACE: &str = "http://elasticloadbalancing.amazonaws.com/doc/2015-12-01/";
const EC2_NAMESPACE: &str = "http://ec2.amazonaws.com/doc/2016-11-15/";

/// An answer: status, the headers that callers read, and an XML or JSON document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// What the body is.
    pub content_type: &'static str,
    /// The header with an error's code, in services that answer JSON.
    pub error_header: Option<(&'static str, String)>,
    /// The document.
    pub body: String,
}

/// A call's result, in its service's format.
pub(super) enum Answer {
    Xml(Xml),
    Json(serde_json::Value),
}

impl Reply {
    pub(super) fn xml(status: u16, body: String) -> Self {
        Self { status, content_type: "text/xml", error_header: None, body }
    }

    fn json(status: u16, body: &serde_json::Value) -> Self {
        Self { status, content_type: "application/json", error_header: None, body: body.to_string() }
    }
}

pub(super) fn success(service: Service, action: &str, answer: &Answer, id: &str) -> Reply {
    let root = format!("{action}Response");
    let body = match answer {
        Answer::Json(body) => return Reply::json(200, body),
        Answer::Xml(body) if service == Service::Ec2 => Xml::document(&root, EC2_NAMESPACE, |xml| {
            xml.text("requestId", id).append(body);
        }),
        Answer::Xml(body) => Xml::document(&root, namespace(service), |xml| {
            if !VOID.contains(&action) {
                xml.inside(&format!("{action}Result"), |xml| {
                    xml.append(body);
                });
            }
            xml.inside("ResponseMetadata", |xml| {
                xml.text("RequestId", id);
            });
        }),
    };
    Reply::xml(200, body)
}

/// Of a service that has the query protocol.
fn namespace(service: Service) -> &'static str {
    if service == Service::LoadBalancing { LOAD_BALANCING_NAMESPACE } else { AUTO_SCALING_NAMESPACE }
}

pub(super) fn refusal(service: Service, error: &ApiError, id: &str) -> Reply {
    if error.code.is_empty() {
        return Reply { content_type: "text/html", ..Reply::xml(error.status, error.message.clone()) };
    }
    let body = match service {
        Service::AutoScaling | Service::LoadBalancing => {
            Xml::document("ErrorResponse", namespace(service), |xml| {
                xml.inside("Error", |xml| {
                    xml.text("Type", if error.status < 500 { "Sender" } else { "Receiver" })
                        .text("Code", error.code)
                        .text("Message", &error.message);
                })
                .text("RequestId", id);
            })
        }
        Service::Ec2 => Xml::document("Response", "", |xml| {
            xml.list("Errors", "Error", [error], |xml, error| {
                xml.text("Code", error.code).text("Message", &error.message);
            })
            .text("RequestID", id);
        }),
        Service::Eks => {
            let body = serde_json::json!({ "message": error.message });
            let error_header = Some((ERROR_TYPE, error.code.to_owned()));
            return Reply { error_header, ..Reply::json(error.status, &body) };
        }
        Service::Pricing => {
            let body = serde_json::json!({ "__type": error.code, "Message": error.message });
            return Reply::json(error.status, &body);
        }
        Service::Sqs => {
            let body = serde_json::json!({ "__type": sqs::shape(error.code), "message": error.message });
            let fault = if error.status < 500 { "Sender" } else { "Receiver" };
            let error_header = Some((QUERY_ERROR, format!("{};{fault}", error.code)));
            return Reply { error_header, ..Reply::json(error.status, &body) };
        }
    };
    Reply::xml(error.status, body)
}

pub(super) fn uuid(bits: u128) -> String {
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
