#include "deploy/serve/draft_control.h"

namespace specdec::deploy {

DraftOrder draft_order_from_json(const Json& body) {
  const char* const where = "the order";
  const auto share = [&](const char* key) -> std::optional<double> {
    if (!body.contains(key)) return std::nullopt;
    return json_double(body, key, 0, 1, where, ErrorKind::kUsage);
  };
  if (!body.is_object()) throw Error(ErrorKind::kUsage, "the order: expected a JSON object, found " + std::string(body.type_name()));
  for (const auto& [key, value] : body.items())
    if (key != "action" && key != "draft" && key != "score" && key != "serve")
      throw Error(ErrorKind::kUsage, "the order: unknown key '" + key + "': there are action, draft, score and serve");
  const std::string action = json_string(body, "action", where, ErrorKind::kUsage);
  DraftOrder order;
  order.score = share("score");
  order.serve = share("serve");
  if (action == "load") {
    order.draft = json_string(body, "draft", where, ErrorKind::kUsage);
    if (order.draft.empty()) throw Error(ErrorKind::kUsage, "the order: draft: expected a MODEL, found an empty text");
  } else if (action == "share") {
    order.action = DraftOrder::Action::kShare;
  } else if (action == "promote") {
    order.action = DraftOrder::Action::kPromote;
  } else if (action == "drop") {
    order.action = DraftOrder::Action::kDrop;
  } else {
    throw Error(ErrorKind::kUsage, "the order: action: expected load, share, promote or drop, found '" + action + "'");
  }
  return order;
}

}  // namespace specdec::deploy
