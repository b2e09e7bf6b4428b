//! actix actors around the stages: each stage is an actor that owns its threads; the supervisor starts them from the
//! writer back to the reader, watches, stops the job at the first fault and checks every count at the end.
//!
//! Chunks never pass through mailboxes (they do not hold back); the actors carry lifecycle, faults and observation.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix::prelude::*;

use super::stage::{Cause, Fault, Halt, working_on};

/// One thread of a stage: runs to its end and says how many items it passed on.
pub type Body = Box<dyn FnOnce() -> Result<u64, Halt> + Send>;

/// A stage to start: its name and its threads.
pub struct StageSpec {
    pub name: &'static str,
    pub threads: Vec<Body>,
}

/// How a phase ended.
#[derive(Debug)]
pub enum Ending {
    /// Every stage reached its end; items passed on, per stage.
    Done(Vec<(&'static str, u64)>),
    Failed(Fault),
    Stopped,
}

/// A stage's actor. Its threads block on channels, so they are threads of their own, never handlers.
struct Stage {
    spec: Option<StageSpec>,
    name: &'static str,
    open: usize,
    passed: u64,
    supervisor: Addr<Supervisor>,
    /// Keeps the mailbox connected until every thread's end was handled: an actor whose last address goes just after its
    /// mailbox was found empty stops, and the end sent in between would be lost.
    own: Option<Addr<Stage>>,
}

#[derive(Message)]
#[rtype(result = "()")]
struct ThreadEnded(Result<u64, Halt>);

impl Actor for Stage {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        let Some(spec) = self.spec.take() else { return };
        self.own = Some(ctx.address());
        for (n, body) in spec.threads.into_iter().enumerate() {
            let me = ctx.address();
            let name = self.name;
            let thread = std::thread::Builder::new().name(format!("{name}-{n}")).spawn(move || {
                // A panic would drop the thread's channel ends and look like an ordinary end: it is caught here and told.
                let result = catch_unwind(AssertUnwindSafe(|| {
                    working_on(|_| {});
                    body()
                }));
                let result = result.unwrap_or_else(|panic| {
                    let message = format!("panicked: {}", panic_text(panic.as_ref()));
                    Err(Halt::Fault(Fault::here(name, message)))
                });
                me.do_send(ThreadEnded(result));
            });
            if let Err(error) = thread {
                let fault = Fault::here(name, format!("can't start a thread: {error}")).because(Cause::of(&error));
                ctx.address().do_send(ThreadEnded(Err(Halt::Fault(fault))));
            }
        }
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "without a message".to_owned(),
    }
}

impl Handler<ThreadEnded> for Stage {
    type Result = ();

    fn handle(&mut self, ThreadEnded(result): ThreadEnded, ctx: &mut Self::Context) {
        self.open -= 1;
        match result {
            Ok(passed) => self.passed += passed,
            Err(halt) => self.supervisor.do_send(Halted(halt)),
        }
        if self.open == 0 {
            self.supervisor.do_send(StageEnded { name: self.name, passed: self.passed });
            self.own = None;
            ctx.stop();
        }
    }
}

/// Watches the stages of one phase.
struct Supervisor {
    specs: Vec<StageSpec>,
    open: usize,
    ended: Vec<(&'static str, u64)>,
    halted: bool,
    fault: Option<Fault>,
    /// Told when nobody says why a stage went away.
    orphaned: Option<Fault>,
    stop: Arc<AtomicBool>,
    tick: Box<dyn Fn()>,
    ending: Arc<Mutex<Option<Ending>>>,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Halted(Halt);

#[derive(Message)]
#[rtype(result = "()")]
struct StageEnded {
    name: &'static str,
    passed: u64,
}

impl Actor for Supervisor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        // From the writer back: each stage finds the next one already listening.
        for spec in self.specs.drain(..).rev() {
            let stage = Stage {
                name: spec.name,
                open: spec.threads.len(),
                passed: 0,
                supervisor: ctx.address(),
                spec: Some(spec),
                own: None,
            };
            stage.start();
        }
        ctx.run_interval(Duration::from_millis(100), |supervisor, _| (supervisor.tick)());
    }
}

impl Handler<Halted> for Supervisor {
    type Result = ();

    fn handle(&mut self, Halted(halt): Halted, _: &mut Self::Context) {
        self.halted = true;
        // The first fault is the job's reason; what stops because of it is not.
        match halt {
            Halt::Fault(fault) => {
                tracing::debug!(stage = fault.stage, place = %fault.place, message = %fault.message, "fault");
                self.fault.get_or_insert(fault);
            }
            Halt::Orphaned(fault) => {
                self.orphaned.get_or_insert(fault);
            }
            Halt::Stopped => {}
        }
        self.stop.store(true, Ordering::SeqCst);
    }
}

impl Handler<StageEnded> for Supervisor {
    type Result = ();

    fn handle(&mut self, ended: StageEnded, ctx: &mut Self::Context) {
        self.open -= 1;
        self.ended.push((ended.name, ended.passed));
        if self.open > 0 {
            return;
        }
        (self.tick)();
        let ending = match (self.fault.take().or(self.orphaned.take()), self.halted) {
            (Some(fault), _) => Ending::Failed(fault),
            (None, true) => Ending::Stopped,
            (None, false) => Ending::Done(std::mem::take(&mut self.ended)),
        };
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner) = Some(ending);
        ctx.stop();
        System::current().stop();
    }
}

/// Runs the stages of a phase to their end on a system of their own. `tick` is called now and then from this thread.
pub fn supervise(specs: Vec<StageSpec>, stop: Arc<AtomicBool>, tick: Box<dyn Fn()>) -> Ending {
    let ending = Arc::new(Mutex::new(None));
    let result = ending.clone();
    let system = System::new();
    system.block_on(async move {
        let open = specs.len();
        let supervisor =
            Supervisor { specs, open, ended: Vec::new(), halted: false, fault: None, orphaned: None, stop, tick, ending };
        supervisor.start();
    });
    let ran = system.run();
    let ended = result.lock().unwrap_or_else(PoisonError::into_inner).take();
    ended.unwrap_or_else(|| {
        let message = format!("the actor system ended before the stages did ({ran:?})");
        Ending::Failed(Fault { stage: "supervisor", place: "job".to_owned(), message, cause: Cause::Final })
    })
}
