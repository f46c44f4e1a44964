//! What an inspection found, with its place.

/// Most findings that are kept one by one: on a device that is all damage, more of the same says nothing new. All are
/// counted.
const FINDINGS_MAX: usize = 1000;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something is lost or can't be trusted: a copy, metadata, or data.
    Damage,
    /// Unusual, but what a crash at the wrong moment leaves behind too, or of no consequence for data.
    Note,
}

impl Severity {
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Damage => "damage",
            Self::Note => "note",
        }
    }
}

/// Something that isn't as the format says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// What should be there.
    pub what: &'static str,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes concerned.
    pub len: u64,
    /// What it belongs to, where that is known: pool, container, object, keys, epoch.
    pub subject: Option<String>,
    /// What is wrong.
    pub reason: String,
}

impl core::fmt::Display for Finding {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}: {} at byte {} ({} bytes)", self.severity.name(), self.what, self.offset, self.len)?;
        if let Some(subject) = &self.subject {
            write!(f, " of {subject}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// Findings so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Findings {
    pub(crate) list: Vec<Finding>,
    pub(crate) damages: u64,
    pub(crate) notes: u64,
}

impl Findings {
    pub(crate) fn add(&mut self, finding: Finding) {
        match finding.severity {
            Severity::Damage => self.damages += 1,
            Severity::Note => self.notes += 1,
        }
        if self.list.len() < FINDINGS_MAX {
            self.list.push(finding);
        }
    }

    pub(crate) fn damage(&mut self, what: &'static str, offset: u64, len: u64, reason: String) {
        self.add(Finding { severity: Severity::Damage, what, offset, len, subject: None, reason });
    }

    pub(crate) fn note(&mut self, what: &'static str, offset: u64, len: u64, reason: String) {
        self.add(Finding { severity: Severity::Note, what, offset, len, subject: None, reason });
    }
}
