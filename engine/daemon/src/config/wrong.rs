//! What is said of a file that is no configuration: it may be anything, and terminals and logs take it as it comes.

use std::fmt::Write as _;

/// Longest report that is given as it is: a line with what leads there and what was expected.
const REPORT_MAX: usize = 1000;

/// Most characters of a reason that is cut.
const REASON_MAX: usize = 200;

/// Where and why a text is no configuration. The line itself is shown if it is one that people write.
pub fn reason(text: &str, error: &toml::de::Error) -> String {
    let report = error.to_string();
    if report.len() <= REPORT_MAX && report.chars().all(|c| c == '\n' || !c.is_control()) {
        return report;
    }
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    let mut reason = format!("line {line}, column {column}: ");
    let escaped = error.message().escape_debug();
    let mut left = escaped.clone().skip(REASON_MAX);
    reason.extend(escaped.take(REASON_MAX));
    if left.next().is_some() {
        let _ = write!(reason, "…");
    }
    reason
}
