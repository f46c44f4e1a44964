//! Background work of a service, done again as long as something of it is left.

use std::rc::{Rc, Weak};
use std::time::Duration;

use weir_runtime::sync::Notify;
use weir_runtime::{Handle, race};

use super::PoolService;

/// Pause before engines that didn't answer are asked again: one restarts in seconds.
const RETRY_PAUSE: Duration = Duration::from_secs(5);

/// Starts work that says whether something of it is left. It is done at once, when it is asked for, and after a pause while
/// something is left; it ends with the service.
pub(super) fn start<W>(service: &Rc<PoolService>, asked: fn(&PoolService) -> &Notify, work: W)
where
    W: AsyncFn(&PoolService) -> bool + 'static,
{
    let rt = service.engines.runtime().clone();
    rt.clone().spawn(run(Rc::downgrade(service), rt, asked, work));
}

async fn run<W>(service: Weak<PoolService>, rt: Handle, asked: fn(&PoolService) -> &Notify, work: W)
where
    W: AsyncFn(&PoolService) -> bool,
{
    loop {
        let Some(strong) = service.upgrade() else { return };
        if strong.stopped.get() {
            return;
        }
        let left = work(&strong).await;
        let wake = asked(&strong).notified();
        drop(strong);
        if left {
            race(wake, rt.sleep(RETRY_PAUSE)).await;
        } else {
            wake.await;
        }
    }
}
