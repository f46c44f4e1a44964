//! Running a target on many inputs.

use crate::coverage::Coverage;
use crate::mutate::{draw, mutate};
use crate::targets::Target;
use std::cell::RefCell;
use std::fs;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};
use weir_runtime::random::Random;

/// Longest run of one input: a thousand times what the slowest take. A longer one is a hang.
const RUN_LIMIT: Duration = Duration::from_secs(20);

/// How often the watching thread looks.
const WATCH_STEP: Duration = Duration::from_millis(500);

/// Name of the file that holds the input being run, for the parent that finds the process dead.
pub const CURRENT: &str = "current";

/// Exit code of a process that was ended because of a hang.
pub const HANG_CODE: i32 = 77;

/// How to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// For how long.
    pub time: Duration,
    /// For how many runs at most.
    pub runs: u64,
    /// What the inputs are drawn from.
    pub seed: u64,
    /// Where inputs that reached something new are kept, and where to start from.
    pub corpus: Option<PathBuf>,
    /// Where inputs that fail are kept. `None`: nowhere, and a hang isn't looked for.
    pub failures: Option<PathBuf>,
}

/// An input on which something didn't hold.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The input.
    pub input: Vec<u8>,
    /// What was said.
    pub message: String,
    /// Where the input was kept.
    pub path: Option<PathBuf>,
}

/// What became of a target.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Inputs run.
    pub runs: u64,
    /// Inputs kept because they reached something new.
    pub kept: usize,
    /// Places reached, of how many.
    pub reached: (usize, usize),
    /// The first failure; the run ends with it.
    pub failure: Option<Failure>,
}

thread_local! {
    static MESSAGE: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Has panics of targets noted instead of printed.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let is_ours = MESSAGE.try_with(|message| {
                let mut message = message.borrow_mut();
                let expected = message.starts_with('\u{1}');
                if expected {
                    *message = info.to_string();
                }
                expected
            });
            if is_ours != Ok(true) {
                usual(info);
            }
        }));
    });
}

/// Runs one input. `Err`: what didn't hold.
///
/// # Errors
/// When the target panics.
pub fn run_input(target: &Target, input: &[u8]) -> Result<(), String> {
    note_panics();
    MESSAGE.with(|message| "\u{1}".clone_into(&mut message.borrow_mut()));
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let message = MESSAGE.with(RefCell::take);
    result.map_err(|_| message)
}

/// The input being run, as the watching thread sees it.
struct RunningInput {
    began: Option<Instant>,
    input: Vec<u8>,
}

/// Ends the process when one input runs for too long, after keeping it.
fn watch(shared: &Arc<Mutex<RunningInput>>, name: &'static str, folder: PathBuf) {
    let shared = Arc::clone(shared);
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(WATCH_STEP);
            let watched = shared.lock().unwrap_or_else(PoisonError::into_inner);
            if watched.began.is_some_and(|began| began.elapsed() > RUN_LIMIT) {
                let kept = keep(&folder, "hang", &watched.input);
                eprintln!("{name}: an input runs for more than {RUN_LIMIT:?}; kept: {kept:?}");
                std::process::exit(HANG_CODE);
            }
        }
    });
}

/// Keeps an input under a name made of its content.
///
/// # Errors
/// When the folder can't be written.
pub fn keep(folder: &Path, kind: &str, input: &[u8]) -> io::Result<PathBuf> {
    fs::create_dir_all(folder)?;
    let name = format!("{kind}-{:016x}", crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, input));
    let path = folder.join(name);
    fs::write(&path, input)?;
    Ok(path)
}

/// The inputs of a folder; none when there is no folder.
#[must_use]
pub fn inputs_of(folder: &Path) -> Vec<Vec<u8>> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut paths: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    paths.sort();
    paths.iter().filter_map(|path| fs::read(path).ok()).collect()
}

/// Runs a target until time or runs are used up, or something fails.
///
/// # Errors
/// When corpus or failures can't be kept.
pub fn fuzz(target: &Target, options: &Options) -> io::Result<Outcome> {
    let began = Instant::now();
    let random = Random::new(options.seed);
    let mut coverage = Coverage::new();
    let mut outcome = Outcome::default();
    let mut corpus: Vec<Vec<u8>> = options.corpus.as_deref().map(inputs_of).unwrap_or_default();
    let mut known = corpus.clone().into_iter();
    let shared = Arc::new(Mutex::new(RunningInput { began: None, input: Vec::new() }));
    if let Some(folder) = &options.failures {
        fs::create_dir_all(folder)?;
        watch(&shared, target.name, folder.clone());
    }
    while outcome.runs < options.runs && began.elapsed() < options.time {
        let (input, is_known) = match known.next() {
            Some(input) => (input, true),
            None => (next_input(&random, &corpus), false),
        };
        if let Some(folder) = &options.failures {
            fs::write(folder.join(CURRENT), &input)?;
        }
        set(&shared, Some(Instant::now()), &input);
        coverage.reset();
        let result = run_input(target, &input);
        let is_new = coverage.take();
        set(&shared, None, &[]);
        outcome.runs += 1;
        outcome.reached = (coverage.reached(), coverage.total());
        if let Err(message) = result {
            let path = options.failures.as_deref().map(|folder| keep(folder, "panic", &input)).transpose()?;
            outcome.failure = Some(Failure { input, message, path });
            break;
        }
        if is_new && !is_known {
            if let Some(folder) = &options.corpus {
                keep(folder, "input", &input)?;
            }
            corpus.push(input);
            outcome.kept += 1;
        }
    }
    if let Some(folder) = &options.failures {
        fs::remove_file(folder.join(CURRENT))?;
    }
    Ok(outcome)
}

fn set(shared: &Mutex<RunningInput>, began: Option<Instant>, input: &[u8]) {
    let mut watched = shared.lock().unwrap_or_else(PoisonError::into_inner);
    watched.began = began;
    watched.input.clear();
    watched.input.extend_from_slice(input);
}

fn next_input(random: &Random, corpus: &[Vec<u8>]) -> Vec<u8> {
    let any = || {
        let at = usize::try_from(random.below(corpus.len().max(1) as u64)).unwrap_or(0);
        corpus.get(at).map(Vec::as_slice).unwrap_or_default()
    };
    // Now and then from nothing, so that the search doesn't settle.
    if corpus.is_empty() || random.below(16) == 0 {
        return draw(random);
    }
    mutate(random, any(), any())
}
