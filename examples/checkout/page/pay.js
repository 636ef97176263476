// Sends a purchase until its outcome is known, always with the same key and the same bytes.

const ATTEMPTS = 5;
const FIRST_PAUSE = 250;
/** How long an answer may take. Giving up is safe: the next attempt has the same key. */
const ATTEMPT_LIMIT = 20_000;
/** How long a charge that runs is asked for. */
const PATIENCE = 120_000;

/** What the shop refuses before it charges. */
const REFUSED = ["price_changed"];
/** What doesn't get better by asking again, and doesn't say that nothing was charged. */
const UNKNOWN = {
  outcome_unknown: "The shop can’t tell whether this was charged.",
  response_not_kept: "This was done before, and the shop hasn’t kept its answer.",
  key_reused: "The key of this purchase was used for another order, which may have been charged.",
  another_session: "This was begun in another session, which may have been charged.",
};

/**
 * Resolves to `{ kind: "charged", charge, replayed }`, `{ kind: "refused", detail }` or `{ kind: "unknown", detail }`; or to
 * `{ kind: "unanswered", detail }`, which is none of the three, so that the purchase must stay. `tell` hears what goes on.
 */
export async function pay(api, purchase, tell) {
  const start = Date.now();
  let failures = 0;
  for (;;) {
    const answer = await attempt(api, purchase);
    if (answer.kind !== "retry") return answer;
    const pause = FIRST_PAUSE * 2 ** failures * (0.5 + Math.random() / 2);
    // A charge that runs is no failure: only time ends that.
    if (!answer.runs) failures += 1;
    if (failures === ATTEMPTS || Date.now() - start > PATIENCE) {
      return { kind: "unanswered", detail: answer.detail };
    }
    tell(answer.detail);
    await new Promise((resolve) => setTimeout(resolve, Math.max(pause, answer.after)));
  }
}

async function attempt(api, { key, body }) {
  try {
    const response = await fetch(`${api}/charges`, {
      method: "POST",
      headers: { "content-type": "application/json", "idempotency-key": key },
      body,
      // For the session's cookie, if the API is another origin.
      credentials: "include",
      // Somebody else would answer.
      redirect: "error",
      signal: AbortSignal.timeout(ATTEMPT_LIMIT),
    });
    // What breaks off in the middle, or isn't JSON, isn't the shop's answer: a portal’s page, a gateway’s error.
    return meaning(response, await response.json());
  } catch {
    return { kind: "retry", after: 0, detail: "The shop doesn’t answer." };
  }
}

function meaning(response, answer) {
  const { status, headers } = response;
  const replayed = headers.get("idempotent-replayed") === "true";
  if (status === 201) return { kind: "charged", charge: answer, replayed };
  const { code } = answer;
  const detail = String(answer.detail ?? answer.title ?? `The shop answered ${status}.`);
  if (REFUSED.includes(code)) return { kind: "refused", detail };
  if (Object.hasOwn(UNKNOWN, code ?? "")) return { kind: "unknown", detail: UNKNOWN[code] };
  const after = 1000 * Math.min(Number(headers.get("retry-after")) || 0, 30);
  if (code === "in_flight") {
    return { kind: "retry", runs: true, after, detail: "The payment is being made …" };
  }
  // An error that is saved stays the same.
  const mayPass = status >= 500 || [408, 425, 429].includes(status);
  return { kind: mayPass && !replayed ? "retry" : "unanswered", after, detail };
}
