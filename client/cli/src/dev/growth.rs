//! `add`: one engine more in a system that runs.

use std::time::{Duration, Instant};

use serde_json::json;
use weir_management::v1::EngineHealth;

use crate::connection::{System, runtime};
use crate::error::CliError;
use crate::local::Folder;
use crate::output::Answer;
use crate::storage::system;

/// How long an engine may take to be up, and known to the others: it formats its devices.
const UP_LIMIT: Duration = Duration::from_mins(1);

/// Longest wait for an answer, and pause between two questions.
const LOOK_LIMIT: Duration = Duration::from_secs(2);
const LOOK_PAUSE: Duration = Duration::from_millis(200);

/// Adds an engine to a system, and waits until all engines know it. The supervisor starts it.
pub(super) fn add(folder: &Folder) -> Result<Answer, CliError> {
    let shown = folder.0.display();
    let runs = folder.running()?.is_some_and(|running| running.ready && running.supervisor.is_alive());
    let settings = folder.settings()?.filter(|_| runs);
    let mut settings = settings.ok_or_else(|| {
        CliError::Dead(format!("no system runs in {shown}: start it with `{}`", folder.command("up")))
    })?;
    if !settings.devices.is_empty() {
        return Err(CliError::Usage(
            "the engines of this system have their data on devices, of which there is none for one more"
                .into(),
        ));
    }
    let rank = settings.engines;
    settings.add_engine()?;
    // Clients' file has the engines that were there, until the supervisor has written it.
    let system = System::open(&folder.attach(), LOOK_LIMIT)?;
    folder.keep_settings(&settings)?;
    runtime()?.block_on(wait_up(&system, rank, folder))?;
    let text = format!("engine {rank} is up: `weir pool extend POOL --ranks {rank}` has it join a pool\n");
    Ok(Answer::new(json!({ "rank": rank }), text))
}

/// Waits until an engine that was there before says that the new one is up.
async fn wait_up(system: &System, rank: u32, folder: &Folder) -> Result<(), CliError> {
    let begun = Instant::now();
    loop {
        let last = match system::query_system(system).await {
            Ok(reply) => match reply.engines.iter().find(|engine| engine.rank == rank) {
                Some(engine) if engine.health() == EngineHealth::Up => return Ok(()),
                Some(engine) => engine.message.clone(),
                None => "the others don't know it".to_owned(),
            },
            Err(error) => error.to_string(),
        };
        if begun.elapsed() > UP_LIMIT {
            let log = folder.engine_log(rank);
            return Err(CliError::Dev(format!(
                "engine {rank} is not up after {} s ({last}); its log is {}",
                UP_LIMIT.as_secs(),
                log.display()
            )));
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
}
