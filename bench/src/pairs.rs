//! Two sides that are measured by turns: what else the machine does meets both, so that only neighbours are compared.

use crate::report::Report;

/// What neighbouring turns gave, in operations a second: of what is measured, and of its reference.
#[derive(Default)]
pub struct Pairs(Vec<[f64; 2]>);

/// The middle one.
pub fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What 99 of 100 values stay below.
pub fn p99(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() * 99 / 100).copied().unwrap_or(f64::NAN)
}

impl Pairs {
    /// Adds a turn of each side.
    pub fn add(&mut self, own: f64, reference: f64) {
        self.0.push([own, reference]);
    }

    /// Whether there was no turn.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What is measured: the median of its turns.
    pub fn own(&self) -> f64 {
        median(self.0.iter().map(|pair| pair[0]))
    }

    fn reference(&self) -> f64 {
        median(self.0.iter().map(|pair| pair[1]))
    }

    /// Median of the ratios of neighbours.
    fn ratio(&self) -> f64 {
        median(self.0.iter().map(|[own, reference]| own / reference))
    }

    /// Adds a row of rates.
    pub fn rate(&self, report: &mut Report, name: &str, unit: &str, reference: &str, goal: Option<&str>) {
        report.ratio(name, self.own(), unit, (reference, self.reference()), self.ratio(), goal);
    }

    /// Adds a row of times of one operation, in microseconds.
    pub fn time(&self, report: &mut Report, name: &str, reference: &str, goal: Option<&str>) {
        let (own, other) = (1e6 / self.own(), 1e6 / self.reference());
        report.ratio(name, own, "us", (reference, other), 1.0 / self.ratio(), goal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_that_both_were_slow_in_changes_no_ratio() {
        let mut pairs = Pairs::default();
        for speed in [1.0, 0.1, 1.2] {
            pairs.add(3.0 * speed, 2.0 * speed);
        }
        let mut report = Report::default();
        pairs.rate(&mut report, "rate", "op/s", "other", None);
        pairs.time(&mut report, "time", "other", None);
        let ratios: Vec<f64> = report.rows().iter().filter_map(|row| row.ratio).collect();
        assert!((ratios[0] - 1.5).abs() < 1e-9 && (ratios[1] - 1.0 / 1.5).abs() < 1e-9, "{ratios:?}");
        assert!((pairs.own() - 3.0).abs() < 1e-9);
    }
}
