//! Every order of events that three requests with one key can meet, on a model and on the memory store at once.
//!
//! The model takes each action in each state that can be reached: calls whose answers arrive or are lost, effects,
//! deaths, ticks of the clock, purges. Its promises are checked in every state and over every step. Every step
//! is also taken on a real store that was brought there by the same actions, and both must agree in answer and record.
#![cfg(feature = "memory")]
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "these are tests"
)]
#![expect(
    clippy::wildcard_enum_match_arm,
    reason = "whatever else is answered is wrong"
)]

mod naive;
mod real;
mod world;

use std::collections::{HashMap, VecDeque};

use self::{
    real::Real,
    world::{Action, World},
};

#[tokio::test(start_paused = true)]
async fn under_refuse_no_order_of_events_breaks_a_promise() {
    explore(World::new(false)).await;
}

#[tokio::test(start_paused = true)]
async fn under_run_again_no_order_of_events_breaks_a_promise() {
    explore(World::new(true)).await;
}

async fn explore(start: World) {
    let reached = check_model(&start);
    let steps = check_real(&start, &reached).await;
    println!("{} states, {} steps", reached.len(), steps);
    assert!(reached.len() > 1000, "the model hardly moves");
}

/// The states that can be reached, each with the last step on a shortest way to it.
type Reached = HashMap<World, Option<(World, Action)>>;

/// Goes everywhere, breadth first, and checks the promises.
fn check_model(start: &World) -> Reached {
    let mut reached = Reached::from([(start.clone(), None)]);
    let mut queue = VecDeque::from([start.clone()]);
    while let Some(world) = queue.pop_front() {
        for action in world.actions() {
            let mut next = world.clone();
            let answer = next.act(action);
            world.check_step(action, answer, &next);
            next.check();
            if !reached.contains_key(&next) {
                reached.insert(next.clone(), Some((world.clone(), action)));
                queue.push_back(next);
            }
        }
    }
    reached
}

/// Takes every step on a real store. One store goes on as long as there are steps that none took yet.
async fn check_real(start: &World, reached: &Reached) -> usize {
    let mut untaken: HashMap<&World, Vec<Action>> = reached
        .keys()
        .map(|world| (world, world.actions()))
        .collect();
    let mut taken = 0;
    for goal in reached.keys() {
        while !untaken[goal].is_empty() {
            let mut real = Real::new(start.run_again);
            for action in way_to(goal, reached) {
                real.act(action).await;
            }
            let mut world = goal.clone();
            while let Some(action) = untaken.get_mut(&world).and_then(Vec::pop) {
                step(&mut world, &mut real, action).await;
                taken += 1;
            }
        }
    }
    taken
}

async fn step(world: &mut World, real: &mut Real, action: Action) {
    let before = world.slot;
    let expected = world.act(action);
    let answer = real.act(action).await;
    assert_eq!(answer, expected, "{action:?} on {before:?}");
    assert!(
        real.agrees_with(world.slot).await,
        "{action:?} on {before:?} should make it {:?}",
        world.slot
    );
}

fn way_to(goal: &World, reached: &Reached) -> Vec<Action> {
    let mut way = Vec::new();
    let mut world = goal;
    while let Some((previous, action)) = &reached[world] {
        way.push(*action);
        world = previous;
    }
    way.reverse();
    way
}
