// The page: what is pressed, and what follows. What there is to know about keys is in purchase.js, about answers in pay.js.

import * as purchases from "./purchase.js";
import { pay } from "./pay.js";
import { at, render, status } from "./view.js";

const api = document.querySelector("meta[name=api]").content;

let shop;
let paying = false;
/** Why the last attempts of this tab gave up, and for which key. */
let gaveUp;

const savedCart = () => JSON.parse(localStorage.getItem("cart")) ?? { beans: 1, mug: 2 };

/** What the cart holds now, as the shop is to be asked for it. */
function order() {
  const counts = savedCart();
  const items = {};
  let amount = 0;
  for (const { id, price } of shop.items) {
    if (counts[id] > 0) items[id] = counts[id];
    amount += price * (counts[id] ?? 0);
  }
  return { customer: shop.customer, items, amount };
}

/** One tab at a time: two that are opened at once would become two customers. */
const load = () =>
  navigator.locks.request("session", async () => {
    const response = await fetch(`${api}/shop`, { credentials: "include" });
    shop = await response.json();
  });

async function show() {
  const purchase = await purchases.current();
  render({ shop, order: order(), purchase, paying, outcome: outcomeOf(purchase) });
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
    status("This browser doesn’t let the page keep a purchase, so nothing can be paid here.");
    return;
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
  go(() => purchases.begin(order()));
});

at("items").addEventListener("input", ({ target }) => {
  if (!target.validity.valid) return;
  localStorage.setItem("cart", JSON.stringify({ ...savedCart(), [target.name]: target.valueAsNumber }));
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
addEventListener("storage", show);
addEventListener("pageshow", ({ persisted }) => persisted && resume());

try {
  await load();
} catch {
  status("The shop doesn’t answer. Reload this page: what was begun is kept.");
}
if (shop) await resume();
