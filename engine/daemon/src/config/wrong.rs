//! Errors of a configuration file that doesn't parse. The file may hold anything, and the text goes to terminals and
//! logs, so it is escaped.

/// Longest report that is given as it is: a line with what leads there and what was expected.
pub const REPORT_MAX: usize = 1000;

/// Most characters of a reason or a value that is cut.
pub const REASON_MAX: usize = 200;

/// Where and why a text is no configuration. The line itself is shown if it is one that people write.
pub fn reason(text: &str, error: &toml::de::Error) -> String {
    let report = error.to_string();
    if report.len() <= REPORT_MAX && report.chars().all(|c| c == '\n' || !c.is_control()) {
        return report;
    }
    let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or("");
    let line = before.matches('\n').count() + 1;
    let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
    format!("line {line}, column {column}: {}", brief(error.message(), REASON_MAX))
}

/// A text in so many characters at most, and without those that control terminals.
pub fn brief(text: &str, characters: usize) -> String {
    let mut brief = String::new();
    for (count, character) in text.chars().enumerate() {
        if count == characters {
            brief.push('…');
            break;
        }
        if character.is_control() {
            brief.extend(character.escape_debug());
        } else {
            brief.push(character);
        }
    }
    brief
}
