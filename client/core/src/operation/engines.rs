//! Engines that the attach file doesn't have: any engine tells where they are.

use core::time::Duration;

use weir_proto::group::GroupList;
use weir_proto::{Der, Rank, opcode};
use weir_rpc::Peer;
use weir_runtime::Instant;

use super::payload::SERVICE_REPLY;
use super::{Answers, PAUSE, Payload, Reach, RequestInfo, is_elsewhere};
use crate::error::{Error, Result};
use crate::session::Context;

/// Longest wait for one engine while there are others, and for the first of some: an engine answers from memory.
const ASK_LIMIT: Duration = Duration::from_secs(1);

/// How long after an engine has joined all others know it at the latest, and some more.
const HEARD_MAX: Duration = Duration::from_secs(15);

/// Engines that are asked at once: one of them is up, unless most are away.
const ASKED: usize = 3;

impl Context {
    /// The peer of a target of an engine that the attach file doesn't have, as a pool map does: the engine has joined the system since
    /// the file was written. Engines are asked until one knows it: lists of engines spread within seconds.
    ///
    /// # Errors
    /// When no engine that answers knows it in time.
    pub(crate) async fn find_peer(
        &self,
        (rank, target): (Rank, u32),
        info: &RequestInfo<'_>,
        deadline: Instant,
    ) -> Result<Peer> {
        let rt = self.runtime();
        let (started, mut pause) = (rt.now(), PAUSE.0);
        loop {
            let answered = self.ask_for_engines(deadline).await;
            if let Some(peer) = self.peer(rank, target) {
                return Ok(peer);
            }
            let (now, waited) = (rt.now(), rt.now().saturating_duration_since(started));
            if answered && waited >= HEARD_MAX {
                let reason = format!(
                    "neither the attach file nor the engines that it names know an engine {rank} with a target {target}; is the file this system's?"
                );
                return Err(Error::refused(info.operation, info.subject, Der::UNREACH, reason));
            }
            if now + pause >= deadline {
                return Err(Error::Unavailable {
                    operation: info.operation,
                    subject: info.subject.to_string(),
                    server: format!("engine {rank} target {target}"),
                    waited,
                    cause: "no engine that answers knows where it is yet".to_owned(),
                });
            }
            rt.sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Asks some engines of the attach file where all engines are, and takes the first answer. Whether there was one.
    async fn ask_for_engines(&self, deadline: Instant) -> bool {
        let until = (self.runtime().now() + ASK_LIMIT).min(deadline);
        let (mut open, mut asked) = (self.attached(), Vec::new());
        while asked.len() < ASKED && !open.is_empty() {
            let random = self.runtime().random_u64() % (open.len() as u64);
            asked.push(
                open.swap_remove(usize::try_from(random).expect("invariant: it is below their number")),
            );
        }
        let mut answers = Answers::new(asked.into_iter().map(|rank| self.ask_where_engines_are(rank, until)));
        let mut answered = false;
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(list) => {
                    self.learn_engines(list.engines);
                    return true;
                }
                // One of an earlier release knows no such question.
                Err(error) => answered |= !is_elsewhere(&error),
            }
        }
        answered
    }

    async fn ask_where_engines_are(&self, rank: Rank, until: Instant) -> Result<GroupList> {
        let info = RequestInfo::new("find the engines of", &"the system", opcode::SYSTEM_ENGINES);
        let payload = Payload::LongReply { room: SERVICE_REPLY, request: &[] };
        let answer = self.exchange(Reach::Rank(rank), &info, &[], &payload, until).await;
        answer.map_err(|refusal| refusal.error)?.decode(&info)
    }
}
