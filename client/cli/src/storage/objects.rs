//! `container list-objects`: the ids of all objects of a container.

use std::collections::BTreeSet;

use clap::Args;
use serde_json::{Value, json};
use weir_client::{Anchor, Epoch, Object, ObjectId};

use super::container::ContainerName;
use crate::connection::session::Session;
use crate::error::CliError;
use crate::output::{Answer, lines};

/// Names a container's objects.
#[derive(Args, Debug, Clone)]
pub struct ContainerObjects {
    /// The container.
    #[command(flatten)]
    pub name: ContainerName,
    /// Epoch of a snapshot, as list-snap shows it; what is there now when absent.
    #[arg(long, alias = "epc", allow_negative_numbers = true)]
    pub epoch: Option<u64>,
}

/// Lists objects.
///
/// # Errors
/// When there is no such snapshot, or a target refuses or does not answer in time.
pub async fn list(arguments: &ContainerObjects, session: &Session<'_>) -> Result<Answer, CliError> {
    let (context, container) = (session.context, session.container);
    if let Some(epoch) = arguments.epoch
        && !container.snapshots(context).await?.contains(&Epoch(epoch))
    {
        let ContainerName { pool, container } = &arguments.name;
        return Err(CliError::NotFound(format!(
            "container {container} of pool {pool} has no snapshot at epoch {epoch}"
        )));
    }
    let epoch = arguments.epoch.map_or(Epoch::MAX, Epoch);
    let (mut all, mut target, mut anchor) = (BTreeSet::new(), 0, Anchor::START);
    while let Some((found, next)) =
        Object::list_of_target(context, container, (target, epoch), &anchor).await?
    {
        session.goes_on();
        all.extend(found);
        (target, anchor) = if next.is_end() { (target + 1, Anchor::START) } else { (target, next) };
    }
    let shown: Vec<String> = all.iter().map(|ObjectId { hi, lo }| format!("{hi}.{lo}")).collect();
    Ok(Answer::new(shown.iter().map(|id| json!(id)).collect::<Value>(), lines(&shown)))
}
