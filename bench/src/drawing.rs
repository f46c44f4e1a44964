//! Line charts as SVG, for figures with a logarithmic number of clients along the bottom.

use std::fmt::Write;
use std::path::Path;

use crate::report::BenchError;

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 440.0;
/// Room for axes and legend: left, right, top, bottom.
const MARGIN: (f64, f64, f64, f64) = (80.0, 200.0, 48.0, 60.0);
/// Colours that people who don't tell red from green can tell apart (Okabe and Ito).
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// A line of a chart.
pub struct Series {
    /// What the legend says.
    pub name: String,
    /// Points, by ascending first coordinate, which is positive.
    pub points: Vec<(f64, f64)>,
}

/// A chart.
pub struct Chart {
    /// What it shows.
    pub title: String,
    /// What the bottom counts.
    pub across: String,
    /// What the left side counts.
    pub up: String,
    /// The lines.
    pub series: Vec<Series>,
}

/// Rounds up to 1, 2 or 5 times a power of ten.
fn round_up(value: f64) -> f64 {
    let power = 10_f64.powf(value.max(f64::MIN_POSITIVE).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|step| step * power).into_iter().find(|step| *step >= value).unwrap_or(value)
}

fn short(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{} M", value / 1e6),
        value if value >= 1e3 => format!("{} k", value / 1e3),
        value => format!("{value}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

impl Chart {
    /// The chart as SVG text.
    #[must_use]
    pub fn svg(&self) -> String {
        let (left, right, top, bottom) = MARGIN;
        let (plot_width, plot_height) = (WIDTH - left - right, HEIGHT - top - bottom);
        let points = || self.series.iter().flat_map(|series| &series.points);
        let least = points().map(|point| point.0).fold(f64::INFINITY, f64::min).max(1.0);
        let most = points().map(|point| point.0).fold(1.0, f64::max).max(least * 1.001);
        let highest = round_up(points().map(|point| point.1).fold(0.0, f64::max));
        let x = |value: f64| left + (value / least).log2() / (most / least).log2() * plot_width;
        let y = |value: f64| top + plot_height - value / highest * plot_height;
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
             font-size=\"12\">\n<rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n"
        );
        let mut text = |at: (f64, f64), anchor: &str, more: &str, text: &str| {
            let (x, y, text) = (at.0, at.1, escaped(text));
            // Memory takes everything.
            let _ =
                writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\"{more}>{text}</text>");
        };
        text((left, top - 20.0), "start", " font-size=\"15\" font-weight=\"bold\"", &self.title);
        text((left + plot_width / 2.0, HEIGHT - 14.0), "middle", "", &self.across);
        let turned = format!(" transform=\"rotate(-90 16 {:.1})\"", top + plot_height / 2.0);
        text((16.0, top + plot_height / 2.0), "middle", &turned, &self.up);
        for step in 0..=5 {
            let value = highest * f64::from(step) / 5.0;
            text((left - 8.0, y(value) + 4.0), "end", "", &short(value));
        }
        let mut ticks: Vec<f64> = points().map(|point| point.0).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        for tick in &ticks {
            text((x(*tick), top + plot_height + 18.0), "middle", " font-size=\"10\"", &format!("{tick}"));
        }
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let at = self.series.iter().position(|one| one.name == series.name).unwrap_or(0);
            let line = top + 12.0 + 20.0 * f64::from(u32::try_from(at).unwrap_or(0));
            let fill = format!(" fill=\"{colour}\" font-weight=\"bold\"");
            text((WIDTH - right + 14.0, line), "start", &fill, &series.name);
        }
        for step in 0..=5 {
            let height = y(highest * f64::from(step) / 5.0);
            let end = left + plot_width;
            let _ = writeln!(
                svg,
                "<line x1=\"{left}\" y1=\"{height:.1}\" x2=\"{end}\" y2=\"{height:.1}\" stroke=\"#ddd\"/>"
            );
        }
        for (series, colour) in self.series.iter().zip(COLOURS.iter().cycle()) {
            let line: Vec<String> =
                series.points.iter().map(|(at, value)| format!("{:.1},{:.1}", x(*at), y(*value))).collect();
            let line = line.join(" ");
            let _ = writeln!(
                svg,
                "<polyline points=\"{line}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
            );
            for (at, value) in &series.points {
                let (x, y) = (x(*at), y(*value));
                let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
            }
        }
        svg.push_str("</svg>\n");
        svg
    }

    /// Writes the chart into a file.
    pub fn save(&self, path: &Path) -> Result<(), BenchError> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder).map_err(BenchError::file("create", folder))?;
        }
        std::fs::write(path, self.svg()).map_err(BenchError::file("write", path))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_has_a_line_for_each_series_inside_its_frame_and_escapes_its_texts() {
        let series = |name: &str, scale: f64| Series {
            name: name.to_owned(),
            points: [1.0, 10.0, 100.0].map(|at| (at, at * scale)).to_vec(),
        };
        let chart = Chart {
            title: "a < b & c".to_owned(),
            across: "clients".to_owned(),
            up: "requests".to_owned(),
            series: vec![series("one", 1.0), series("two", 3.7)],
        };
        let svg = chart.svg();
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("<circle").count(), 6);
        assert!(svg.contains("a &lt; b &amp; c") && svg.ends_with("</svg>\n"));
        assert!(svg.contains(">500<"), "370 is rounded up to 500: {svg}");
        let heights =
            svg.split("cy=\"").skip(1).filter_map(|rest| rest.split('"').next()?.parse::<f64>().ok());
        assert!(heights.into_iter().all(|height| (0.0..HEIGHT).contains(&height)));
    }

    #[test]
    fn an_empty_chart_is_a_chart() {
        let empty =
            Chart { title: String::new(), across: String::new(), up: String::new(), series: Vec::new() };
        assert!(!empty.svg().contains("NaN"));
    }
}
