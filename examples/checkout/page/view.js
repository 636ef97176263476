// What the page shows. All text goes in as text, never as markup.

export const at = (id) => document.getElementById(id);

export const status = (text) => {
  at("status").textContent = text;
};

const money = new Intl.NumberFormat("en", { style: "currency", currency: "EUR" });
const euros = (cents) => money.format(cents / 100);

const TITLES = {
  charged: "Charged once",
  refused: "Not charged",
  unknown: "Please don’t pay again yet",
  unanswered: "Not known yet",
};
const ADVICE = {
  refused: "Nothing was charged.",
  unknown: "Look at your charges below, or ask the shop, before you buy this again.",
  unanswered: "It is safe to try again: this purchase can’t be charged twice.",
};
const NEXT = { charged: "New purchase", refused: "Back to the cart", unknown: "I have checked: start anew" };

/** `outcome` is that of the purchase, or why this tab has none; neither exists while it pays. */
export function render({ shop, order, purchase, paying, outcome }) {
  const settled = Boolean(purchase?.outcome);
  showCart(shop, order, paying);
  at("cart").hidden = settled;
  at("pay").hidden = Boolean(outcome);
  at("result").hidden = !outcome;
  if (outcome) showResult(shop, order, purchase, outcome);
  showCharges(shop.charges);
}

function showCart(shop, order, paying) {
  if (!at("items").hasChildNodes()) at("items").append(...shop.items.map(row));
  for (const input of at("items").querySelectorAll("input")) {
    // Who is typing isn't interrupted.
    if (input !== document.activeElement) input.value = order.items[input.name] ?? 0;
  }
  at("fields").disabled = paying;
  at("pay").disabled = paying || order.amount === 0;
  at("total").textContent = euros(order.amount);
}

function row({ id, name, price }) {
  const row = at("item").content.cloneNode(true);
  row.querySelector(".name").textContent = name;
  row.querySelector(".price").textContent = euros(price);
  row.querySelector("label").htmlFor = id;
  Object.assign(row.querySelector("input"), { id, name: id });
  return row;
}

function showResult(shop, order, { key, body, outcome: settled }, outcome) {
  const { kind, detail, charge, replayed } = outcome;
  const bought = JSON.parse(body);
  const edited = JSON.stringify(bought.items) !== JSON.stringify(order.items);
  at("result").dataset.kind = kind;
  at("title").textContent = TITLES[kind];
  at("detail").textContent = [
    detail,
    ADVICE[kind],
    edited && kind !== "refused" && "Your cart has changed since; this is about what it was then.",
  ]
    .filter(Boolean)
    .join(" ");
  const name = (id) => shop.items.find((item) => item.id === id)?.name ?? id;
  const lines = Object.entries(bought.items).map(([id, count]) => line(`${count} × ${name(id)}`));
  at("bought").replaceChildren(...lines);
  fact("amount", euros(charge?.amount ?? bought.amount));
  fact("charge", charge?.id);
  fact("answer", charge && (replayed ? "replayed, the charge was made before" : "first, of the request that charged"));
  fact("reference", key);
  at("again").textContent = kind === "unknown" ? "Ask again" : "Try again";
  at("again").hidden = kind === "charged" || kind === "refused";
  at("new").hidden = !settled;
  at("new").textContent = NEXT[kind] ?? "";
}

function fact(id, text) {
  at(id).textContent = text ?? "";
  at(id).parentElement.hidden = !text;
}

function showCharges(charges) {
  at("history").hidden = charges.length === 0;
  at("charges").replaceChildren(...charges.map(({ id, amount }) => line(`${euros(amount)} · ${id}`)));
}

function line(text) {
  const line = document.createElement("li");
  line.textContent = text;
  return line;
}
