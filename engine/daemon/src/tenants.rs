//! Which tenants' access is revoked. Every target of every engine keeps the same table and answers nobody of a revoked tenant.
//!
//! A change is told to all targets at once. Target 0 makes the table durable, and every few seconds asks another engine for its
//! table, so that an engine that was away learns what it missed; other targets ask target 0. Of two statements on a tenant the later
//! one holds.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_group::{AskError, Engines, Refusal};
use weir_proto::group::EngineInfo;
use weir_proto::tenant::{TenantAccess, TenantQuestion, TenantTable};
use weir_proto::{Der, Rank, TargetIndex, TenantId, codec, opcode};
use weir_rpc::Rpc;
use weir_runtime::join_all;

use crate::durable;

/// Most tenants of which something is remembered. An administrator makes a statement on each; a table of them is 300 KB.
const TENANTS_MAX: usize = 16_384;

/// Longest wait for a target to take note: a write of a small file.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// How often a target asks another one for its table.
pub const ASK_INTERVAL: Duration = Duration::from_secs(5);

/// Where the table is kept across restarts of an engine.
pub trait TenantRecord {
    /// What was kept last; nothing if nothing was.
    ///
    /// # Errors
    /// When it can't be read.
    fn read(&self) -> io::Result<Option<Vec<u8>>>;

    /// Keeps the table.
    ///
    /// # Errors
    /// When it can't be written.
    fn keep(&self, table: &[u8]) -> io::Result<()>;
}

/// The table in a file of the data directory.
#[derive(Clone, Debug)]
pub struct TenantFile {
    path: PathBuf,
}

impl TenantFile {
    /// The table of the engine with this data directory.
    #[must_use]
    pub fn new(data: &Path) -> Self {
        Self { path: data.join("tenants") }
    }
}

impl TenantRecord for TenantFile {
    fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(&self.path) {
            Ok(table) => Ok(Some(table)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn keep(&self, table: &[u8]) -> io::Result<()> {
        durable::write(&self.path, table)
    }
}

/// The table can't be used.
#[derive(Debug, thiserror::Error)]
pub enum TenantsError {
    /// It can't be read or written.
    #[error("the record of revoked tenants: {0}")]
    Record(#[from] io::Error),
    /// It is damaged.
    #[error(
        "the record of revoked tenants is damaged ({0}): remove it, and revoke again whose access was revoked"
    )]
    Damaged(#[from] codec::DecodeError),
    /// There is no room for another tenant.
    #[error("there are statements on {TENANTS_MAX} tenants already")]
    Full,
}

/// What an engine says of a tenant.
pub struct EngineAnswer {
    /// The engine.
    pub rank: Rank,
    /// Whether the tenant's access is revoked there; an error if a target of it doesn't answer.
    pub revoked: Result<bool, AskError>,
}

/// The table of one target.
pub struct Tenants {
    engines: Rc<Engines>,
    rpc: Rc<Rpc>,
    record: Rc<dyn TenantRecord>,
    table: RefCell<BTreeMap<TenantId, TenantAccess>>,
    next: Cell<usize>,
}

impl Tenants {
    /// Turns away whose access was revoked before, and takes note of what others say from now on.
    ///
    /// # Errors
    /// When the record can't be read: an engine that doesn't know whom to turn away must not serve.
    pub fn start(
        engines: &Rc<Engines>,
        rpc: &Rc<Rpc>,
        record: Rc<dyn TenantRecord>,
    ) -> Result<Rc<Self>, TenantsError> {
        let kept: TenantTable = record.read()?.map_or_else(|| Ok(Vec::new()), |kept| codec::decode(&kept))?;
        let table = RefCell::new(kept.into_iter().collect());
        let (engines, rpc, next) = (Rc::clone(engines), Rc::clone(rpc), Cell::new(0));
        let tenants = Rc::new(Self { engines, rpc, record, table, next });
        tenants.turn_away();
        let weak = Rc::downgrade(&tenants);
        tenants.engines.serve(opcode::TENANT_TABLE, move |_, asked: TenantQuestion| {
            let tenants = weak.upgrade();
            async move {
                let stopping = || refusal(Der::SHUTDOWN, "the engine is stopping".to_owned());
                let tenants = tenants.ok_or_else(stopping)?;
                tenants.note(&asked.statements).map_err(|error| refusal(Der::BUSY, error.to_string()))?;
                Ok::<_, Refusal>(tenants.entries(asked.about))
            }
        });
        tenants.engines.runtime().spawn(keep_up(Rc::downgrade(&tenants)));
        Ok(tenants)
    }

    /// The statements on one tenant, or on all.
    fn entries(&self, about: Option<TenantId>) -> TenantTable {
        let table = self.table.borrow();
        let asked = table.iter().filter(|(tenant, _)| about.is_none_or(|about| about == **tenant));
        asked.map(|(tenant, access)| (*tenant, *access)).collect()
    }

    fn turn_away(&self) {
        let table = self.table.borrow();
        let revoked = table.iter().filter(|(_, access)| access.revoked).map(|(tenant, _)| *tenant);
        self.rpc.turn_away_tenants(revoked.collect());
    }

    /// Takes over later statements. Target 0 makes them durable first.
    fn note(&self, theirs: &[(TenantId, TenantAccess)]) -> Result<(), TenantsError> {
        let mut merged = self.table.borrow().clone();
        for (tenant, access) in theirs {
            // The system itself can't be turned away: its engines are of it.
            if *tenant == TenantId::SYSTEM {
                continue;
            }
            let known = merged.entry(*tenant).or_insert(*access);
            *known = (*known).max(*access);
        }
        if merged == *self.table.borrow() {
            return Ok(());
        }
        if merged.len() > TENANTS_MAX {
            return Err(TenantsError::Full);
        }
        if self.engines.own_index().0 == 0 {
            self.record.keep(&codec::encode(&merged.iter().collect::<Vec<_>>()))?;
        }
        for (tenant, access) in &merged {
            if self.table.borrow().get(tenant) != Some(access) {
                tracing::info!(tenant = tenant.0, revoked = access.revoked, "a tenant's access changes");
            }
        }
        self.table.replace(merged);
        self.turn_away();
        Ok(())
    }

    /// Makes a statement on a tenant and tells every target of every engine. Returns what each engine says.
    pub async fn state(&self, tenant: TenantId, revoked: bool) -> Vec<EngineAnswer> {
        let known = self.table.borrow().get(&tenant).copied();
        let access = match known {
            Some(access) if access.revoked == revoked => access,
            known => {
                let after = known.map_or(0, |access| access.stated_ns.saturating_add(1));
                TenantAccess { stated_ns: self.engines.runtime().wall_ns().max(after), revoked }
            }
        };
        self.ask_all(tenant, vec![(tenant, access)]).await
    }

    /// Asks every target of every engine whether a tenant's access is revoked.
    pub async fn query(&self, tenant: TenantId) -> Vec<EngineAnswer> {
        self.ask_all(tenant, Vec::new()).await
    }

    async fn ask_all(&self, tenant: TenantId, statements: TenantTable) -> Vec<EngineAnswer> {
        let question = TenantQuestion { statements, about: Some(tenant) };
        let infos = self.engines.all();
        join_all(infos.iter().map(|info| self.ask_engine(info, &question))).await
    }

    /// Whether all targets of an engine turn the tenant away that is asked about.
    async fn ask_engine(&self, info: &EngineInfo, question: &TenantQuestion) -> EngineAnswer {
        let targets = (0..info.targets).map(|index| self.ask(info.rank, TargetIndex(index), question));
        let answers: Result<Vec<TenantTable>, AskError> = join_all(targets).await.into_iter().collect();
        let turns_away = |table: &TenantTable| table.iter().any(|(_, access)| access.revoked);
        EngineAnswer { rank: info.rank, revoked: answers.map(|tables| tables.iter().all(turns_away)) }
    }

    async fn ask(
        &self,
        rank: Rank,
        index: TargetIndex,
        question: &TenantQuestion,
    ) -> Result<TenantTable, AskError> {
        self.engines.ask(rank, index, opcode::TENANT_TABLE, question, ASK_LIMIT).await
    }

    /// Who is asked next: target 0 asks the other engines in turn, other targets their engine's target 0.
    fn next_to_ask(&self) -> Option<Rank> {
        let own = self.engines.own_rank();
        if self.engines.own_index().0 > 0 {
            return Some(own);
        }
        let infos = self.engines.all();
        let others: Vec<_> = infos.iter().map(|info| info.rank).filter(|rank| *rank != own).collect();
        let turn = self.next.get();
        self.next.set(turn.wrapping_add(1));
        others.get(turn % others.len().max(1)).copied()
    }

    /// Takes over what another target knows.
    async fn catch_up(&self) {
        let Some(rank) = self.next_to_ask() else { return };
        let question = TenantQuestion { statements: Vec::new(), about: None };
        // One that doesn't answer is asked again.
        let Ok(theirs) = self.ask(rank, TargetIndex(0), &question).await else { return };
        if let Err(error) = self.note(&theirs) {
            tracing::error!(%error, from = %rank, "revoked tenants can't be taken note of");
        }
    }
}

async fn keep_up(tenants: Weak<Tenants>) {
    loop {
        let Some(strong) = tenants.upgrade() else { return };
        strong.catch_up().await;
        let rt = strong.engines.runtime().clone();
        drop(strong);
        rt.sleep(ASK_INTERVAL).await;
    }
}

fn refusal(der: Der, message: String) -> Refusal {
    Refusal { der, object: "tenants".to_owned(), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_outlives_the_engine() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = || TenantFile::new(folder.path());
        assert_eq!(file().read().expect("the folder is there"), None);
        file().keep(b"table").expect("written");
        assert_eq!(file().read().expect("read").as_deref(), Some(b"table".as_slice()));
    }
}
