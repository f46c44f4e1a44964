//! A container that is opened for one command over the fabric, and how long the command waits for engines.

use std::path::Path;
use std::time::{Duration, Instant};

use weir_client::{Attach, Container, Context, Pool, Rights};

use crate::error::CliError;
use crate::output::{Answer, Output};

/// Longest time for giving the handles back. Engines drop those of a client that is gone, so the wait need not be long.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// An open container.
pub struct Session<'a> {
    /// What reaches the engines.
    pub context: &'a Context,
    /// The container.
    pub container: &'a Container,
}

impl Session<'_> {
    /// Engines have answered: the steps after this one get the command's whole time again.
    pub fn goes_on(&self) {
        self.context.set_limit(Some(self.context.deadline()));
    }
}

/// Connects to a pool, does `work` with it and gives it back. All that is asked of the engines until they have answered takes
/// `patience` together.
///
/// # Errors
/// When the pool can't be connected to, or the work's own.
pub fn with_pool(
    name: &str,
    rights: Rights,
    attach: &Path,
    patience: Duration,
    output: Output,
    work: impl AsyncFnOnce(&Context, &Pool) -> Result<Answer, CliError>,
) -> Result<Answer, CliError> {
    let started = Instant::now();
    let context = Context::real(&Attach::load(Some(attach)).map_err(weir_client::Error::from)?)?;
    output.timing("client init", started);
    context.set_deadline(patience);
    context.set_limit(Some(patience));
    context.block_on(async {
        let pool = Pool::connect(&context, name, rights).await?;
        let answer = work(&context, &pool).await;
        // The answer counts, whatever becomes of the handle.
        context.set_limit(Some(patience.min(CLOSE_LIMIT)));
        let _ = pool.disconnect(&context).await;
        answer
    })
}

/// Opens a container of a pool, does `work` with it and gives both back, as [`with_pool`].
///
/// # Errors
/// When the container can't be opened, or the work's own.
pub fn with_container(
    names: (&str, &str),
    rights: Rights,
    attach: &Path,
    patience: Duration,
    output: Output,
    work: impl AsyncFnOnce(&Session<'_>) -> Result<Answer, CliError>,
) -> Result<Answer, CliError> {
    let started = Instant::now();
    with_pool(names.0, rights, attach, patience, output, async |context, pool| {
        let container = Container::open(context, pool, names.1, rights).await?;
        output.timing("client init, pool connect, container open", started);
        let answer = work(&Session { context, container: &container }).await;
        // As with the pool.
        context.set_limit(Some(patience.min(CLOSE_LIMIT)));
        let _ = container.close(context).await;
        answer
    })
}
