// What an operator may ask of the draft while the server runs: try another one beside it, give it requests, keep or
// drop it.
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
  std::string draft;  // kLoad: MODEL; of a package or channel its draft
  std::optional<double> score,
      serve;  // kLoad, kShare: parts of the conversations, 0 to 1; none: as it is, of a new draft 0.1 and 0
};

// {"action": "load" | "share" | "promote" | "drop", "draft", "score", "serve"}. Throws Error(kUsage) naming the key.
DraftOrder draft_order_from_json(const Json& body);

// Thread-safe.
class DraftControl {
 public:
  virtual ~DraftControl() = default;
  virtual std::string serving() const = 0;  // fingerprint of the draft that serves; "" = none
  virtual Json status() const = 0;          // docs/serve.md
  // `done` gets what went wrong, and then nothing has changed: of a load later and from another thread, of the others
  // before this returns. An order that does not fit the state is an Error(kUsage).
  virtual void order(const DraftOrder& order, std::function<void(const std::optional<Error>&)> done) = 0;
};

}  // namespace specdec::deploy
