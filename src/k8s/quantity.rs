//! Kubernetes quantities, as far as resources of nodes need them: none is negative.
//!
//! Source: [Quantity](https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/).

/// The number that the text stands for; none if it is no quantity from 0 on.
pub fn parse(text: &str) -> Option<f64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    // Rust reads `5.` and `.5` as Kubernetes does, and refuses `.` and two dots.
    let number: f64 = number.parse().ok()?;
    let binary = |power: i32| 1024_f64.powi(power);
    let unit = match suffix {
        "" => 1.0,
        "n" => 1e-9,
        "u" => 1e-6,
        "m" => 1e-3,
        "k" => 1e3,
        "M" => 1e6,
        "G" => 1e9,
        "T" => 1e12,
        "P" => 1e15,
        "E" => 1e18,
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        exponent => 10_f64.powi(self::exponent(exponent)?),
    };
    Some(number * unit)
}

/// The exponent in `e3`, `E+3`, `e-3`.
fn exponent(text: &str) -> Option<i32> {
    let text = text.strip_prefix(['e', 'E'])?;
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let is_number = (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantity_is_what_it_stands_for() {
        for (text, expected) in [
            ("0", 0.0),
            ("1", 1.0),
            ("+1", 1.0),
            ("1.5", 1.5),
            (".5", 0.5),
            ("5.", 5.0),
            ("1930m", 1.93),
            ("20Gi", 20.0 * 1024.0 * 1024.0 * 1024.0),
            ("7834628Ki", 7_834_628.0 * 1024.0),
            ("100M", 1e8),
            ("1e3", 1000.0),
            ("12E6", 12e6),
            ("1E", 1e18),
            ("1e-3", 0.001),
        ] {
            assert_eq!(parse(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn text_that_is_no_quantity_is_none() {
        for text in ["", ".", "-1", "1.2.3", "1gi", "Gi", "1 Gi", "1e", "1KI", "1e999", "inf", "NaN"] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
