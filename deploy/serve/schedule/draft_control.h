// Orders about drafts that an operator gives while the server runs: load a draft for a trial next to the serving draft,
// set the share of conversations in the trial, promote the draft or drop it.
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
  std::string draft;  // for kLoad: a MODEL; a package or channel stands for its draft
  // For kLoad and kShare: the fractions of conversations, 0 to 1, that the draft on trial scores (`score`) and serves
  // (`serve`). If a value is absent, kShare keeps the current value, and kLoad sets score = 0.1 and serve = 0.
  std::optional<double> score, serve;
};

// Parses {"action": "load" | "share" | "promote" | "drop", "draft", "score", "serve"}. Throws Error(kUsage) naming the
// invalid key.
DraftOrder draft_order_from_json(const Json& body);

// Executes the operator's orders about drafts. Thread-safe.
class DraftControl {
 public:
  virtual ~DraftControl() = default;
  virtual std::string serving() const = 0;  // fingerprint of the serving draft; "" = none
  virtual Json status() const = 0;          // the JSON of GET /admin/draft (docs/serve.md)
  // Sets whether there are several tenants. If so, at most half of the conversations that score a draft on trial may
  // come from one tenant.
  virtual void set_several_tenants(bool several) = 0;
  // Executes the order and then calls `done`, with the error if the order failed. A failed order changes nothing. If a
  // load has started, `done` is called later, from another thread; otherwise it is called before order() returns. An
  // order that is not possible in the current state fails with Error(kUsage).
  virtual void order(const DraftOrder& order, std::function<void(const std::optional<Error>&)> done) = 0;
};

}  // namespace specdec::deploy
