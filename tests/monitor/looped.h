// Fixtures for tests of the monitor's loop: a package store with channels, a fake server that tries candidate drafts,
// and a shell script in place of `specdec` whose output and exit codes come from files.
#pragma once

#include <mutex>

#include "monitor/machine/machine.h"
#include "tests/monitor/monitored.h"
#include "tests/net/toy_server.h"

namespace specdec::monitor {

// A fake server. It answers /admin/draft (docs/serve.md) with a status that the test sets, and records the orders that
// it gets.
class ToyAdmin {
 public:
  std::string url() const { return server_.url(); }
  std::vector<std::string> orders() {
    const std::lock_guard lock(mutex_);
    return orders_;
  }
  void set(const std::function<void(Json&)>& change) {
    const std::lock_guard lock(mutex_);
    change(status_);
  }
  std::string refuse, token;

 private:
  net::ToyReply reply(const net::ToyRequest& request) {
    const std::lock_guard lock(mutex_);
    const auto answer = [](int status, const Json& body) {
      net::ToyReply r;
      r.status = status;
      r.body = body.dump();
      return r;
    };
    if (!token.empty() && request.head.find("Bearer " + token) == std::string::npos)
      return answer(401, {{"error", {{"message", "no key"}}}});
    if (request.method == "POST") {
      const Json order = Json::parse(request.body);
      const std::string action = order["action"];
      orders_.push_back(action);
      if (action == "load") {
        if (!refuse.empty()) return answer(409, {{"error", {{"message", refuse}}}});
        status_["candidate"] = {{"name", order["draft"]},
                                {"id", read_manifest(order["draft"].get<std::string>()).draft.id}};
        status_["state"] = "canary";
        status_.erase("paired");
      } else if (action == "promote") {
        status_["serving"] = status_["candidate"];
        status_["candidate"] = nullptr;
        status_["state"] = "promoted";
      } else {
        status_["candidate"] = nullptr;
        status_["state"] = "dropped";
      }
    }
    return answer(200, status_);
  }

  std::mutex mutex_;
  std::vector<std::string> orders_;
  Json status_ = {{"schema", "specdec.draft/1"},
                  {"state", "none"},
                  {"serving", {{"name", "old"}, {"id", "old"}}},
                  {"candidate", nullptr}};
  net::ToyServer server_{[this](const net::ToyRequest& request) { return reply(request); }};
};

// A fixture with a package store with channels. In place of `specdec` it has a shell script that prints files, exits
// with codes from files, and records its arguments.
class Looped : public Monitored {
 protected:
  Looped() {
    package = to_store("p", "production");
    options.package = (dir / "store").string() + ":production";
    options.policy.min_fresh = 100;
    specdec::testing::put(
        dir / "specdec",
        "#!/bin/sh\ncd " + dir.root().string() +
            "\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\necho \"$*\" >> asked\ncase \"$1 $2\" in\n"
            "validate*) cat probe.json; exit $(cat probe.code 2>/dev/null || echo 0);;\n"
            "\"loop run\") echo \"$SPECDEC_ALARM_KEY\" >> trained; [ -e train.sh ] && . ./train.sh; exit $(cat "
            "train.code 2>/dev/null || echo 0);;\n"
            "package*) [ -e package.code ] && exit $(cat package.code);;\nesac\ncase \"$1 $2\" in\n"
            "\"package promote\") cp store/refs/$7 store/refs/$7.former 2>/dev/null; echo \"${3#sha256-}\" > "
            "store/refs/$7;;\n"
            "\"package rollback\") [ -e store/refs/$6.former ] || exit 7; cp store/refs/$6.former store/refs/$6;;\n"
            "esac\n");
    fs::permissions(dir / "specdec", fs::perms::owner_all);
    options.program = dir / "specdec";
  }

  std::string to_store(const std::string& name, const std::string& channel) {
    const std::string digest = package_digest(dir / name);
    fs::create_directories(dir / "store/packages");
    fs::rename(dir / name, dir / ("store/packages/sha256-" + digest));
    specdec::testing::put(dir / ("store/refs/" + channel), digest + "\n");
    return digest;
  }
  // Packages another draft for the same target and points the channel "candidate" to the package. Returns its digest.
  std::string make_candidate(const std::string& name, int bump,
                             const std::function<void(ValidationReport&)>& change = {}) {
    const std::string was_draft = draft_id, was_target = target_id;
    make_package(name, bump, change);
    new_draft = draft_id;
    draft_id = was_draft;
    target_id = was_target;
    return to_store(name, "candidate");
  }
  void drift() {
    write_requests(100, 0.80, 0.60);
    see();
    write_requests(600, 0.80, 0.45);
  }
  CheckResult see() { return check(options, clock); }
  Memory memory() { return memory_from_json(parse_json(State(options.state).value("machine"), "m"), "m"); }
  std::string stage() { return name(memory().stage); }
  std::string way() {
    std::string text;
    for (const TransitionEntry& t : State(options.state).transitions(INT64_MAX))
      text += (text.empty() ? t.from + " " : "") + "-" + t.event + "-> " + t.to + " ";
    return text;
  }
  int64_t trainings() {
    const std::string lines = specdec::testing::get(dir / "trained");
    return std::count(lines.begin(), lines.end(), '\n');
  }
  static std::string probe(double value, double low, double high, int n = 200) {
    return Json({{"baseline", {{"alpha_difference", value}, {"ci", {low, high}}, {"paired_requests", n}}}}).dump() +
           "\n";
  }
  void scores(ToyAdmin& admin, double low, double high, double candidate = 0.9) {
    admin.set([&](Json& s) {
      s["paired"] = {{"conversations", 200},
                     {"difference", {{"value", (low + high) / 2}, {"ci", {low, high}}}},
                     {"candidate", {{"value", candidate}, {"ci", {candidate, candidate}}}}};
    });
  }

  std::string package, new_draft;
  specdec::testing::ManualClock clock;
};

}  // namespace specdec::monitor
