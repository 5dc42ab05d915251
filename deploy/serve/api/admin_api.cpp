#include <mutex>
#include <utility>

#include "base/log.h"
#include "deploy/serve/api/api.h"

namespace specdec::deploy {

namespace {

HttpReply json_reply(int status, const Json& body) { return {status, "application/json", body.dump(), {}}; }

// Waits for the reply to an operator's request about drafts (an order). The thread that loads the draft may reply long
// after the client has disconnected.
class Ordered final : public Exchange {
 public:
  struct Outcome {
    std::mutex mutex;
    std::optional<HttpReply> reply;
    std::function<void()> wake;
  };

  explicit Ordered(std::shared_ptr<Outcome> outcome) : outcome_(std::move(outcome)) {}
  ~Ordered() override { on_wake({}); }
  void on_wake(std::function<void()> wake) override {
    const std::lock_guard lock(outcome_->mutex);
    outcome_->wake = std::move(wake);
  }
  Turn next() override {
    const std::lock_guard lock(outcome_->mutex);
    if (!outcome_->reply) return {};
    return {Turn::Kind::kReply, std::move(*outcome_->reply), {}};
  }
  void abandon() override {}

 private:
  const std::shared_ptr<Outcome> outcome_;
};

void settle(Ordered::Outcome& outcome, HttpReply reply) {
  // The mutex is held while waking, so that no connection is woken after it has called on_wake({}).
  const std::lock_guard lock(outcome.mutex);
  outcome.reply = std::move(reply);
  if (outcome.wake) outcome.wake();
}

}  // namespace

std::optional<HttpReply> AdminApi::answer_head(HttpRequest& request) {
  request.party = "\n";  // no tenant can have this name, because names have no line break
  const bool drain = request.path == "/admin/drain", draft = request.path == "/admin/draft";
  if (request.path == "/health" && request.method == "GET") return json_reply(200, {{"status", "ok"}});
  if (!drain && !draft) return error_reply(unknown_route(), request.id);
  if (request.method != "POST" && !(draft && request.method == "GET")) {
    HttpReply reply = error_reply(wrong_method(), request.id);
    reply.headers.emplace_back("Allow", draft ? "GET, POST" : "POST");
    return reply;
  }
  if (draft) return drafts_.load() ? std::nullopt : std::optional(error_reply(loading(), request.id));
  drain_();
  return json_reply(202, {{"status", "draining"}});
}

std::shared_ptr<Exchange> AdminApi::respond(HttpRequest request) {
  const auto outcome = std::make_shared<Ordered::Outcome>();
  DraftControl& drafts = *drafts_.load();
  try {
    if (request.method == "GET") {
      settle(*outcome, json_reply(200, drafts.status()));
    } else {
      const DraftOrder order = draft_order_from_json(parse_json(request.body, "the order", ErrorKind::kUsage));
      drafts.order(order, [&drafts, outcome, id = request.id](const std::optional<Error>& error) {
        settle(*outcome, error ? error_reply(draft_refused(error->what()), id) : json_reply(200, drafts.status()));
      });
    }
  } catch (const Error& e) {
    settle(*outcome, error_reply(bad_order(e.what()), request.id));
  } catch (const std::exception& e) {
    log(LogLevel::kError, request.id + ": " + e.what());
    settle(*outcome, error_reply(internal_error(), request.id));
  }
  return std::make_shared<Ordered>(outcome);
}

}  // namespace specdec::deploy
