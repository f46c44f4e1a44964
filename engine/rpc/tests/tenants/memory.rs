//! What another tenant tries on exposed memory. Each attempt is an endpoint's own: one that was refused may not get through to
//! its peer again, and no attempt after it would be one.

use core::time::Duration;
use std::os::unix::fs::PermissionsExt;
use std::rc::Rc;

use super::stage::{Inbox, Stage};
use weir_fabric::{Access, Buffer, Endpoint, Exposure, RemoteRegion, Sink};
use weir_runtime::join_all;

/// Bytes that one attempt is after.
const STEP: usize = 64;
/// Where the exposed part of the memory begins, and how long it is. What is around it is the victim's too.
const FROM: usize = 1024;
const LEN: usize = 1024;
/// The victim's bytes, and Mallory's.
const THEIRS: u8 = 7;
const MINE: u8 = 1;
/// Time for an access that succeeds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for one that doesn't: `shm` leaves an access that it refuses without an answer.
const REFUSAL: Duration = Duration::from_secs(1);

/// The victim's memory: parts of two buffers that peers may read and write, and one that they could, until that ended.
struct Exposed {
    victim: Rc<dyn Endpoint>,
    buffers: [Buffer; 2],
    exposures: [Exposure; 2],
    ended: [RemoteRegion; 2],
}

/// Says what a region is tried for, and by which access.
struct Attempt {
    what: String,
    access: Access,
    region: RemoteRegion,
}

impl Exposed {
    fn new(stage: &Stage) -> Self {
        let victim = Rc::clone(stage.victim.endpoint());
        let filled = || {
            let mut buffer = victim.buffers().alloc(FROM + 2 * LEN).expect("memory");
            buffer.fill(THEIRS);
            buffer
        };
        let buffers = [filled(), filled()];
        let expose = || {
            let part = FROM..FROM + LEN;
            let readable = victim.expose(&buffers[0], part.clone(), Access::Read).expect("exposed");
            [readable, victim.expose(&buffers[1], part, Access::Write).expect("exposed")]
        };
        let ended = expose().map(|exposure| {
            let region = exposure.region();
            drop(exposure.close());
            region
        });
        let exposures = expose();
        Self { victim, buffers, exposures, ended }
    }

    /// What peers may read, and what they may write.
    fn regions(&self) -> [RemoteRegion; 2] {
        self.exposures.each_ref().map(|exposure| RemoteRegion { len: STEP as u64, ..exposure.region() })
    }

    /// Makes all attempts at once, each by somebody who is let in with the right key first, and demands that they come to
    /// nothing.
    fn withstands(&self, stage: &Stage, attempts: &[Attempt]) {
        for attempts in attempts.chunks(16) {
            let tried: Vec<_> = attempts.iter().map(|attempt| self.attempt(stage, attempt)).collect();
            for (Attempt { what, access, .. }, (got, fine)) in attempts.iter().zip(stage.run(join_all(tried)))
            {
                assert_eq!(got, 0, "{access:?} {what}: bytes that it got");
                assert!(!fine, "{access:?} {what}: it went well");
            }
            // A write may land after its own end.
            stage.pass(Duration::from_millis(30));
            let whole = self.buffers.iter().all(|buffer| buffer.iter().all(|byte| *byte == THEIRS));
            assert!(
                whole,
                "one of these wrote: {:?}",
                attempts.iter().map(|one| &one.what).collect::<Vec<_>>()
            );
        }
    }

    /// How many bytes of the victim's an attempt gets, and whether its access ends as one that was let in.
    fn attempt(&self, stage: &Stage, attempt: &Attempt) -> impl Future<Output = (usize, bool)> + 'static {
        let mallory = stage.another_endpoint();
        let inbox = Rc::new(Inbox::default());
        let weak = Rc::downgrade(&inbox) as std::rc::Weak<dyn Sink>;
        mallory.set_sink(weak);
        let to = mallory.insert(&self.victim.address()).expect("an address");
        let (rt, [readable, _]) = (stage.rt.clone(), self.regions());
        let (access, region) = (attempt.access, attempt.region);
        async move {
            let mut local = mallory.buffers().alloc(STEP).expect("memory");
            local.fill(MINE);
            let permitted = mallory.read(to, &mut local, 0..STEP, readable);
            assert_eq!(rt.timeout(PATIENCE, permitted).await, Ok(Ok(())), "with the right key");
            assert!(local.iter().all(|byte| *byte == THEIRS), "with the right key");
            local.fill(MINE);
            let transfer = match access {
                Access::Read => mallory.read(to, &mut local, 0..STEP, region),
                Access::Write => mallory.write(to, &local, 0..STEP, region),
            };
            let ended = rt.timeout(REFUSAL, transfer).await;
            // A write may have gone out before the other side refuses it.
            let fine = access == Access::Read && matches!(ended, Ok(Ok(())));
            drop(inbox);
            (local.iter().filter(|byte| **byte != MINE).count(), fine)
        }
    }

    /// Demands that who has the right key still gets through, and the victim to its server.
    fn still_serves(self, stage: &Stage) {
        let control = Attempt { what: String::new(), access: Access::Write, region: self.regions()[1] };
        let tried = self.attempt(stage, &control);
        stage.run(tried);
        let written = &self.buffers[1][FROM..FROM + STEP];
        stage.pass(Duration::from_millis(30));
        assert!(written.iter().all(|byte| *byte == MINE), "what is written with the right key arrives");
        stage.call(&stage.victim, super::stage::COUNT, b"still here", 10).expect("a reply");
    }
}

fn both_ways(what: &str, [readable, writable]: [RemoteRegion; 2]) -> [Attempt; 2] {
    [(Access::Read, readable), (Access::Write, writable)].map(|(access, region)| Attempt {
        what: what.to_owned(),
        access,
        region,
    })
}

/// The last bytes that there could be, and the first ones.
fn at_the_end(region: RemoteRegion) -> RemoteRegion {
    RemoteRegion { addr: u64::MAX - 7, ..region }
}

/// Whether an access has to bring a key that was drawn for it: Mercury counts keys over `ofi+tcp`, and has none over `na+sm`.
fn keys_are_drawn(stage: &Stage) -> bool {
    !stage.victim.endpoint().capabilities().provider.starts_with("mercury/")
}

pub fn is_reached_by_nobody_who_was_not_given_its_key(stage: &Stage) {
    if !keys_are_drawn(stage) {
        return;
    }
    let exposed = Exposed::new(stage);
    let expose = |_| exposed.victim.expose(&exposed.buffers[0], 0..LEN, Access::Read).expect("exposed");
    let exposures: Vec<_> = (0..64).map(expose).collect();
    let keys: Vec<u64> = exposures.iter().map(|exposure| exposure.region().key).collect();
    let near = |a: u64, b: u64| a.abs_diff(b) < 1 << 32;
    let guessable =
        keys.iter().enumerate().any(|(at, key)| keys[..at].iter().any(|other| near(*key, *other)));
    assert!(!guessable, "keys are spread over 64 bits: {keys:x?}");
    // Guesses of every kind: small numbers, neighbours of the key and of another that was seen, random ones.
    let attempts = (0..20u64).flat_map(|n| {
        let guess = |region: RemoteRegion| {
            let key = match n % 4 {
                0 => n,
                1 => region.key ^ (1 << n),
                2 => keys[1].wrapping_add(n + 1),
                _ => stage.rt.random_u64(),
            };
            RemoteRegion { key, ..region }
        };
        both_ways(&format!("guess {n}"), exposed.regions().map(guess))
    });
    exposed.withstands(stage, &attempts.collect::<Vec<_>>());
    drop(exposures);
    exposed.still_serves(stage);
}

/// A key that was seen opens what it was drawn for: providers without auth keys don't tie it to a peer. Nothing else.
pub fn is_reached_with_its_key_as_far_as_it_was_exposed_and_no_further(stage: &Stage) {
    if stage.victim.endpoint().capabilities().provider == "mercury/na+sm" {
        // The kernel copies between processes of one user there, and asks for no key.
        return;
    }
    let exposed = Exposed::new(stage);
    let (regions, step, len) = (exposed.regions(), STEP as u64, LEN as u64);
    let at =
        |offset: u64| regions.map(|region| RemoteRegion { addr: region.addr.wrapping_add(offset), ..region });
    let [readable, writable] = regions;
    let attempts = [
        both_ways("before what is exposed", at(step.wrapping_neg())),
        both_ways("behind it", at(len)),
        both_ways("over its beginning", at((step / 2).wrapping_neg())),
        both_ways("over its end", at(len - step / 2)),
        both_ways("far away", at(1 << 40)),
        both_ways("the other direction", [writable, readable]),
        both_ways(
            "what is exposed no more",
            exposed.ended.map(|region| RemoteRegion { len: step, ..region }),
        ),
    ];
    exposed.withstands(stage, attempts.as_flattened());
    // Libraries that are not mended let that in on shm, and the owner ends (setup/libfabric-mr.patch).
    if std::env::var_os("WEIR_LIBFABRIC").is_none() {
        exposed.withstands(stage, &both_ways("over the end of all addresses", regions.map(at_the_end)));
    }
    exposed.still_serves(stage);
}

/// Within a node it is the kernel that keeps users apart: what an endpoint shares is for processes of its own user.
pub fn shared_within_a_node_is_one_users(stage: &Stage) {
    stage.call(&stage.victim, super::stage::COUNT, b"hello", 10).expect("a reply");
    let process = format!("-{}-", std::process::id());
    let mut files = 0;
    for entry in std::fs::read_dir("/dev/shm").expect("it is there").flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let Ok(metadata) = entry.metadata()
            && name.starts_with("weir-")
            && name.contains(&process)
            && metadata.is_file()
        {
            assert_eq!(metadata.permissions().mode() & 0o077, 0, "{name}");
            files += 1;
        }
    }
    assert!(files >= 6, "three endpoints have a queue and a bell each: {files}");
}
