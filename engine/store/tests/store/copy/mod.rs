//! Copies of a store on another device: entry for entry the same but for the places of data, whatever is damaged told and never
//! taken for good, and nothing that a crash leaves taken for a store.

mod crash;
mod damage;
mod doubtful;
mod refused;
mod whole;

use crate::setup::*;
use std::ops::ControlFlow;
use std::rc::Rc;
use weir_inspect::{
    Copied, CopyError, CopyEvents, CopyOptions, CopyProgress, CopyStage, Field, Filter, Inspector, Line,
    Loss, Part,
};
use weir_media::Device;
use weir_media::memory::MemoryDevice;
use weir_runtime::Handle;
use weir_store::StoreConfig;

/// What a copy has told.
#[derive(Default)]
pub struct Told {
    pub losses: Vec<Loss>,
    pub progress: Vec<CopyProgress>,
    /// It is given up at this notice of its second stage.
    stop_at: Option<usize>,
}

impl CopyEvents for Told {
    fn progress(&mut self, progress: &CopyProgress) -> ControlFlow<()> {
        self.progress.push(*progress);
        let copying = self.progress.iter().filter(|of| of.stage == CopyStage::Copy).count();
        if self.stop_at.is_some_and(|at| copying >= at) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn loss(&mut self, loss: Loss) -> ControlFlow<()> {
        self.losses.push(loss);
        ControlFlow::Continue(())
    }
}

/// Copies what is on a device to another one.
pub async fn copy_to(
    handle: &Handle,
    (from, to): (Rc<dyn Device>, Rc<dyn Device>),
    (restart, config): (bool, StoreConfig),
    told: &mut Told,
) -> Result<Copied, CopyError> {
    let inspector = Inspector::open(from).await.expect("a store");
    let survey = inspector.survey(told).await?;
    inspector.copy(handle, &survey, &to, &CopyOptions { restart, config }, told).await
}

/// Copies from memory to memory.
pub fn copied(from: &MemoryDevice, to: &MemoryDevice, restart: bool) -> (Result<Copied, CopyError>, Told) {
    let devices: (Rc<dyn Device>, Rc<dyn Device>) = (Rc::new(from.clone()), Rc::new(to.clone()));
    run(21, async move |handle| {
        let mut told = Told::default();
        let copied = copy_to(&handle, devices, (restart, quiet()), &mut told).await;
        (copied, told)
    })
}

/// All entries but for the counters of usage, without the places of entries and data.
pub async fn entries(device: Rc<dyn Device>) -> Vec<Line> {
    let store = Inspector::open(device).await.expect("a store");
    let filter = Filter { limit: usize::MAX, ..Filter::default() };
    let (mut lines, _) = dumped_by(&store, Part::Entries, &filter).await.expect("dumped");
    let usage = Field::Text("usage".to_owned());
    lines.retain(|line| line.iter().all(|(_, field)| *field != usage));
    for line in &mut lines {
        line.retain(|(name, _)| !["in", "at"].contains(name));
    }
    lines
}

/// The number of a field.
pub fn number(line: &Line, name: &str) -> u64 {
    match line.iter().find(|(found, _)| *found == name) {
        Some((_, Field::Number(number))) => *number,
        found => panic!("{found:?}"),
    }
}
