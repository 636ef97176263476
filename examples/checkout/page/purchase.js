// The purchase that this browser is about: its key, the bytes of its request, and how it ended.
//
// Kept in IndexedDB, since localStorage is too weak for a key: a browser that is killed forgets what was stored in its last
// seconds, while the request is on its way already; and one tab may not see what another one has stored just before, not even
// under a lock of navigator.locks, so that both would make a key. Here each step is one transaction, for all tabs.

/** Below the server's retention of 24 hours: later the key would be new to it, and the same request a second charge. */
const MAX_AGE = 23 * 60 * 60 * 1000;

const tabs = new BroadcastChannel("purchase");
let opened;

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("checkout", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("purchase");
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

/** Replaces the purchase by what `change` makes of it; undefined is none. It is on disk when the promise resolves. */
async function update(change) {
  const database = await open();
  const changed = await new Promise((resolve, reject) => {
    const transaction = database.transaction("purchase", "readwrite", { durability: "strict" });
    const store = transaction.objectStore("purchase");
    let after;
    store.get(0).onsuccess = ({ target }) => {
      after = change(target.result);
      if (after) store.put(after, 0);
      else store.delete(0);
    };
    transaction.oncomplete = () => resolve(after);
    transaction.onabort = () => reject(transaction.error);
  });
  tabs.postMessage(changed?.key);
  return changed;
}

/** None, or `{ key, body, made }`, with an `outcome` if there is one. */
export async function current() {
  const store = (await open()).transaction("purchase").objectStore("purchase");
  return new Promise((resolve, reject) => {
    const request = store.get(0);
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** The purchase that is there already, whatever it is for, and only if there is none a new one, for this order. */
export const begin = (order) =>
  update(
    (purchase) =>
      purchase ?? { key: crypto.randomUUID(), body: JSON.stringify(order), made: Date.now() },
  );

/** Notes how it ended. What was certain stays, and so does what belongs to another key. */
export const settle = (key, outcome) =>
  update((purchase) => {
    const open = !purchase?.outcome || purchase.outcome.kind === "unknown";
    return purchase?.key === key && open ? { ...purchase, outcome } : purchase;
  });

/** Makes room for a new one. Only after an outcome: until then the key may stand for a charge. */
export const finish = (key) =>
  update((purchase) => (purchase?.key === key && purchase.outcome ? undefined : purchase));

export const isTooOld = ({ made }) => Date.now() - made > MAX_AGE;

/** Calls this when another tab has changed the purchase. */
export const onChange = (callback) => tabs.addEventListener("message", callback);
