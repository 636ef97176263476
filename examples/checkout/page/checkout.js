// The page: what is pressed, and what follows. What there is to know about keys is in purchase.js, about answers in pay.js.

import * as cart from "./cart.js";
import * as purchases from "./purchase.js";
import { pay } from "./pay.js";
import { at, render, status } from "./view.js";

const api = document.querySelector("meta[name=api]").content;

const NOWHERE = "This browser lets no page keep your purchase, and nothing is sent that isn’t kept.";

let shop;
let paying = false;
/** Why the last attempts of this tab gave up, and for which key. */
let gaveUp;

/** One tab at a time: two that are opened at once would become two customers. */
const load = () =>
  navigator.locks.request("session", async () => {
    const response = await fetch(`${api}/shop`, { credentials: "include" });
    if (!response.ok) throw new Error(response.statusText);
    shop = await response.json();
  });

async function show() {
  const purchase = await purchases.current();
  render({ shop, order: cart.order(shop), purchase, paying, outcome: outcomeOf(purchase) });
}

function outcomeOf(purchase) {
  if (!purchase || purchase.outcome || paying) return purchase?.outcome;
  const elsewhere = { kind: "unanswered", detail: "It is being paid in another tab." };
  return gaveUp?.key === purchase.key ? gaveUp.outcome : elsewhere;
}

/** Pays, unless this tab is at it: what `choose` resolves to, if it has no certain outcome yet. */
async function go(choose) {
  if (paying) return;
  paying = true;
  try {
    const purchase = await choose();
    if (purchase && purchase.outcome?.kind !== "charged" && purchase.outcome?.kind !== "refused") {
      await send(purchase);
    }
  } catch {
    return status(NOWHERE);
  } finally {
    paying = false;
  }
  await show();
}

async function send(purchase) {
  await show();
  status("Paying …");
  const outcome = purchases.isTooOld(purchase)
    ? { kind: "unknown", detail: "This was begun too long ago to be tried again." }
    : await pay(api, purchase, status);
  if (outcome.kind === "unanswered") gaveUp = { key: purchase.key, outcome };
  else await purchases.settle(purchase.key, outcome);
  status("");
  // For the list of charges; without it the outcome is still the outcome.
  await load().catch(() => {});
  paying = false;
  await show();
  at("result").focus();
}

/** What was begun and has no outcome goes on by itself: after a reload, and when the browser's Back button restores the page. */
const resume = () =>
  go(async () => {
    const purchase = await purchases.current();
    return purchase?.outcome ? undefined : purchase;
  });

at("cart").addEventListener("submit", (event) => {
  event.preventDefault();
  // If there is a purchase already, of another tab perhaps, and for another cart, that one is brought to its end first.
  go(() => purchases.begin(cart.order(shop)));
});

at("items").addEventListener("input", ({ target }) => {
  if (!target.validity.valid) return;
  cart.put(target.name, target.valueAsNumber);
  show();
});

at("again").addEventListener("click", () => go(purchases.current));

at("new").addEventListener("click", async () => {
  const purchase = await purchases.current();
  if (purchase) await purchases.finish(purchase.key);
  await show();
  at("pay").focus();
});

purchases.onChange(show);
cart.onChange(show);
addEventListener("pageshow", ({ persisted }) => persisted && resume());

async function start() {
  try {
    // Also a browser that blocks cookies says so here.
    cart.counts();
    await purchases.current();
  } catch {
    return status(NOWHERE);
  }
  try {
    await load();
  } catch {
    return status("The shop doesn’t answer. Reload this page: what was begun is kept.");
  }
  await resume();
}

await start();
