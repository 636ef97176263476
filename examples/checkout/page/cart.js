// The cart of all tabs. Losing it costs nobody anything, so localStorage is good enough for it.

export const counts = () => JSON.parse(localStorage.getItem("cart")) ?? { beans: 1, mug: 2 };

export const put = (id, count) =>
  localStorage.setItem("cart", JSON.stringify({ ...counts(), [id]: count }));

/** What is in the cart now, as the shop is to be asked for it. */
export function order(shop) {
  const held = counts();
  const items = {};
  let amount = 0;
  for (const { id, price } of shop.items) {
    if (held[id] > 0) items[id] = held[id];
    amount += price * (held[id] ?? 0);
  }
  return { customer: shop.customer, items, amount };
}

/** Calls this when another tab has changed it. */
export const onChange = (callback) => addEventListener("storage", callback);
