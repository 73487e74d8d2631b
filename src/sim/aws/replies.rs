//! Answers as sent: documents and errors of the three services.

use super::error::ApiError;
use super::operation::Service;
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

const EC2_NAMESPACE: &str = "http://ec2.amazonaws.com/doc/2016-11-15/";

/// An answer: status, the headers that callers read, and an XML or JSON document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The HTTP status.
    pub status: u16,
    /// What the body is.
    pub content_type: &'static str,
    /// The code of an error that is not in the body.
    pub error_type: Option<&'static str>,
    /// The document.
    pub body: String,
}

/// A call's result, in its service's format.
pub(super) enum Answer {
    Xml(Xml),
    Json(serde_json::Value),
}

impl Reply {
    fn xml(status: u16, body: String) -> Self {
        Self { status, content_type: "text/xml", error_type: None, body }
    }

    fn json(status: u16, error_type: Option<&'static str>, body: &serde_json::Value) -> Self {
        Self { status, content_type: "application/json", error_type, body: body.to_string() }
    }
}

pub(super) fn success(service: Service, action: &str, answer: &Answer, id: &str) -> Reply {
    let root = format!("{action}Response");
    let body = match answer {
        Answer::Json(body) => return Reply::json(200, None, body),
        Answer::Xml(body) if service == Service::Ec2 => Xml::document(&root, EC2_NAMESPACE, |xml| {
            xml.text("requestId", id).append(body);
        }),
        Answer::Xml(body) => Xml::document(&root, AUTO_SCALING_NAMESPACE, |xml| {
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

pub(super) fn refusal(service: Service, error: &ApiError, id: &str) -> Reply {
    let body = match service {
        Service::AutoScaling => Xml::document("ErrorResponse", AUTO_SCALING_NAMESPACE, |xml| {
            xml.inside("Error", |xml| {
                xml.text("Type", if error.status < 500 { "Sender" } else { "Receiver" })
                    .text("Code", error.code)
                    .text("Message", &error.message);
            })
            .text("RequestId", id);
        }),
        Service::Ec2 => Xml::document("Response", "", |xml| {
            xml.list("Errors", "Error", [error], |xml, error| {
                xml.text("Code", error.code).text("Message", &error.message);
            })
            .text("RequestID", id);
        }),
        Service::Eks => {
            let body = serde_json::json!({ "message": error.message });
            return Reply::json(error.status, Some(error.code), &body);
        }
    };
    Reply::xml(error.status, body)
}

pub(super) fn uuid(bits: u128) -> String {
    let hex = format!("{bits:032x}");
    [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-")
}
