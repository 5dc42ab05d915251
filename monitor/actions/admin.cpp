#include "monitor/actions/admin.h"

#include "base/error.h"
#include "base/format.h"
#include "base/statistics.h"

namespace specdec::monitor {

namespace {

// Time-out in seconds of an order to load a draft: the server replies after it has read the draft and verified its
// digests.
constexpr double kLoadSeconds = 1800;

Interval interval_of(const Json& paired, const char* which) {
  const Json& e = json_object(paired, which, 8, "paired", ErrorKind::kNetwork);
  const Json& ci = json_array(e, "ci", 2, std::string("paired: ") + which, ErrorKind::kNetwork);
  if (ci.size() != 2 || !ci[0].is_number() || !ci[1].is_number())
    throw Error(ErrorKind::kNetwork, std::string("paired: ") + which + ": ci: expected two numbers");
  return {ci[0].get<double>(), ci[1].get<double>()};
}

}  // namespace

Admin::Admin(const std::string& address, const Secret& key) : key_(key) {
  if (address.starts_with("unix:")) {
    socket_ = address.substr(5);
    if (socket_.empty()) throw Error(ErrorKind::kUsage, "--admin: expected unix:PATH, found '" + address + "'");
    url_ = "http://admin/admin/draft";
  } else {
    url_ = net::base_url(address, "--admin", "--admin-key-file") + "/admin/draft";
  }
}

Admin::Reply Admin::exchange(const std::string* body) {
  net::HttpRequest request;
  request.url = url_;
  request.unix_socket = socket_;
  request.post = body;
  request.bearer = key_;
  request.timeout_s = body ? kLoadSeconds : 30;
  request.max_body_bytes = 1u << 20;
  const net::HttpReply reply = client_.once(request);
  const std::string where = socket_.empty() ? url_ : socket_;
  if (!reply.problem.empty()) throw Error(ErrorKind::kNetwork, where + ": " + reply.problem);
  Reply out{static_cast<int>(reply.status), {}, ""};
  out.body = parse_json(reply.body, where, ErrorKind::kNetwork, {.max_bytes = 1u << 20, .max_depth = 16});
  if (out.status == 200) {
    require_schema(out.body, "draft", 1, where, ErrorKind::kNetwork);
  } else {
    const Json error = out.body.is_object() ? out.body.value("error", Json()) : Json();
    out.problem = where + ": " +
                  (error.is_object() ? error.value("message", "status " + std::to_string(out.status))
                                     : "status " + std::to_string(out.status));
  }
  return out;
}

Admin::Reply Admin::drafts() { return exchange(nullptr); }

Admin::Reply Admin::order(const Json& order) {
  const std::string body = order.dump();
  return exchange(&body);
}

std::string Admin::serve(const std::string& draft, const std::string& id) {
  Reply now = drafts();
  if (now.status != 200) return now.problem;
  if (draft_id_of(now.body, "serving") == id) return "";
  if (draft_id_of(now.body, "candidate") != id) {
    if (!draft_id_of(now.body, "candidate").empty())
      if (const Reply dropped = order({{"action", "drop"}}); dropped.status != 200) return dropped.problem;
    now = order({{"action", "load"}, {"draft", draft}, {"score", 0}, {"serve", 1}});
    if (now.status != 200) return now.problem;
  }
  return order({{"action", "promote"}}).problem;
}

std::string Admin::drop(const std::string& id) {
  const Reply now = drafts();
  if (now.status != 200) return now.problem;
  return draft_id_of(now.body, "candidate") == id ? order({{"action", "drop"}}).problem : "";
}

std::string draft_id_of(const Json& status, const char* which) {
  return status.contains(which) && status[which].is_object() ? status[which].value("id", std::string()) : "";
}

Trial judge_trial(const Json& paired, double margin, double floor) {
  if (!paired.is_object() || !paired.contains("difference")) return {"", "no conversation is scored yet"};
  const Interval difference = interval_of(paired, "difference"), candidate = interval_of(paired, "candidate");
  const int64_t conversations = json_int(paired, "conversations", {0, kMaxCount}, "paired", ErrorKind::kNetwork);
  const std::string text = "candidate less serving draft " + signed_decimals((difference.low + difference.high) / 2) +
                           " " + signed_interval_text(difference) + " over " + std::to_string(conversations) +
                           " conversations, candidate at most " + decimals(candidate.high) + ", floor " +
                           decimals(floor, 2);
  if (candidate.high < floor) return {"worse", text};
  if (difference.low > -margin) return {"better", text};
  if (difference.high < 0) return {"worse", text};
  return {"", text};
}

}  // namespace specdec::monitor
