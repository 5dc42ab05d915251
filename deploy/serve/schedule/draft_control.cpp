#include "deploy/serve/schedule/draft_control.h"

#include <algorithm>
#include <iterator>

namespace specdec::deploy {

DraftOrder draft_order_from_json(const Json& body) {
  struct Known {
    const char* name;
    DraftOrder::Action action;
    bool draft, parts;  // draft: the action takes the key "draft"; parts: it takes "score" and "serve"
  };
  static constexpr Known kActions[] = {{"load", DraftOrder::Action::kLoad, true, true},
                                       {"share", DraftOrder::Action::kShare, false, true},
                                       {"promote", DraftOrder::Action::kPromote, false, false},
                                       {"drop", DraftOrder::Action::kDrop, false, false}};
  const char* const where = "the order";
  if (!body.is_object())
    throw Error(ErrorKind::kUsage, "the order: expected a JSON object, found " + std::string(body.type_name()));
  const std::string action = json_string(body, "action", where, ErrorKind::kUsage);
  const auto* const known =
      std::find_if(std::begin(kActions), std::end(kActions), [&](const Known& k) { return action == k.name; });
  if (known == std::end(kActions))
    throw Error(ErrorKind::kUsage, "the order: action: expected load, share, promote or drop, found '" + action + "'");
  for (const auto& [key, value] : body.items()) {
    const bool draft = key == "draft", part = key == "score" || key == "serve";
    if (key != "action" && !draft && !part)
      throw Error(ErrorKind::kUsage, "the order: unknown key '" + key + "': there are action, draft, score and serve");
    if ((draft && !known->draft) || (part && !known->parts))
      throw Error(ErrorKind::kUsage, "the order: " + key + " does not go with " + action + ": leave it out");
  }
  const auto share = [&](const char* key) -> std::optional<double> {
    if (!body.contains(key)) return std::nullopt;
    return json_double(body, key, {0, 1}, where, ErrorKind::kUsage);
  };
  DraftOrder order;
  order.action = known->action;
  order.score = share("score");
  order.serve = share("serve");
  if (known->draft) order.draft = json_string(body, "draft", where, ErrorKind::kUsage);
  if (known->draft && order.draft.empty())
    throw Error(ErrorKind::kUsage, "the order: draft: expected a MODEL, found an empty text");
  return order;
}

}  // namespace specdec::deploy
