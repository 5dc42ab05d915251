// Defines the orders about drafts that an operator may give while the server runs: load a draft to try next to the
// serving one, set the share of conversations that it gets, promote it or drop it.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/json.h"

namespace specdec::deploy {

struct DraftOrder {
  enum class Action { kLoad, kShare, kPromote, kDrop };
  Action action = Action::kLoad;
  std::string draft;  // kLoad: a MODEL; for a package or channel, its draft
  // For kLoad and kShare: the shares of the conversations, 0 to 1, that the draft on trial scores and serves. If
  // absent, kShare keeps the old value, and kLoad sets score = 0.1 and serve = 0.
  std::optional<double> score, serve;
};

// Reads {"action": "load" | "share" | "promote" | "drop", "draft", "score", "serve"}. Throws Error(kUsage) naming the
// key.
DraftOrder draft_order_from_json(const Json& body);

// Carries out the operator's orders. Thread-safe.
class DraftControl {
 public:
  virtual ~DraftControl() = default;
  virtual std::string serving() const = 0;  // fingerprint of the draft that serves; "" = none
  virtual Json status() const = 0;          // documented in docs/serve.md
  // Says whether there are several tenants. Then at most half of the conversations that score a draft on trial may come
  // from one of them.
  virtual void set_several_tenants(bool several) = 0;
  // Carries out the order and then calls `done` with the error, or with none. A failed order changes nothing. Once a
  // load has begun, `done` is called later from another thread; in all other cases it is called before this returns. An
  // order that does not fit the current state is an Error(kUsage).
  virtual void order(const DraftOrder& order, std::function<void(const std::optional<Error>&)> done) = 0;
};

}  // namespace specdec::deploy
