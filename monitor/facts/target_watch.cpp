#include "monitor/facts/target_watch.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/format.h"
#include "monitor/facts/endpoint.h"
#include "monitor/facts/served_target.h"
#include "monitor/read/source.h"
#include "monitor/statistics/exchangeable.h"

namespace specdec::monitor {

namespace {

constexpr int kMinPermutations = 2000, kMaxPermutations = 20000;
constexpr double kMinAlarm = 1000, kMaxAlarm = 10000;  // mean number of polls between false alarms
constexpr size_t kPoolLooks = 4, kPoolTexts = 4;
// A mean difference of log-probabilities below this, in nats, is ignored: it changes Σ min(p, q) by at most half as
// much, which is within the detector's tolerance.
constexpr double kSmallestDifference = 0.01;
constexpr int kCanaryTokens = 64;
constexpr uint64_t kSeed = 0x746172676574;  // "target" in ASCII
const char* const kPrompts[] = {"a", "I", "1", "{", "#", "T", "é", "中"};

std::vector<std::string> canaries() {
  std::vector<std::string> prompts;
  for (const char* asked :
       {"Explain", "List five facts about", "Write a short poem about", "Tell the history of", "Write a dialogue about",
        "Give advice about", "Invent a riddle about", "Summarise what is known about"})
    for (const char* topic : {"rivers", "trains", "bread", "music", "gravity", "chess", "whales", "glass"})
      prompts.push_back(std::string(asked) + " " + topic + ".");
  return prompts;
}

// Fields of an endpoint's description of itself. If answers cannot be compared with earlier ones, a change of one of
// these fields means another target. Changes of other fields are only hints.
const char* const kDecisive[] = {
    "id", "root", "parent", "max_model_len", "model_path", "weight_version", "chat_template_sha256"};

// The memory between polls (schema "specdec.target_watch/1").
struct WatchMemory {
  std::string package, url, stale;
  Json identity = Json::object();
  Way way;
  int64_t looks = 0, last = 0, rolling_since = 0;
  double log_m = -std::numeric_limits<double>::infinity();
  Comparison newest;
  LogprobCalls calls;
  Texts texts;
};

// Rounds log-probabilities to four decimals, which is finer than the noise between calls by a factor of about 100.
Json to_json(const LogprobCalls& calls) {
  Json json = Json::array();
  for (const auto& prompt : calls) {
    Json rows = Json::array();
    for (const TopLogprobs& call : prompt) {
      Json row = Json::array();
      for (const auto& [token, logprob] : call) row.push_back({token, std::round(logprob * 1e4) / 1e4});
      rows.push_back(std::move(row));
    }
    json.push_back(std::move(rows));
  }
  return json;
}

std::string text_of(const WatchMemory& m) {
  Json json = {{"schema", "specdec.target_watch/1"},
               {"package", m.package},
               {"url", m.url},
               {"stale", m.stale},
               {"identity", m.identity},
               {"way", {{"route", m.way.route}, {"top", m.way.top}}},
               {"looks", m.looks},
               {"last", m.last},
               {"rolling_since", m.rolling_since},
               {"log_m", std::isfinite(m.log_m) ? Json(m.log_m) : Json()},
               {"newest", {m.newest.statistic, m.newest.p, m.newest.share_changed}},
               {"calls", to_json(m.calls)},
               {"texts", m.texts}};
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

WatchMemory memory_of(const std::string& text) {
  const std::string where = "the monitor's state: target_watch";
  const Json json = parse_json(text, where);
  require_schema(json, "target_watch", 1, where);
  try {
    WatchMemory m;
    m.package = json.at("package");
    m.url = json.at("url");
    m.stale = json.at("stale");
    m.identity = json.at("identity");
    m.way = {json.at("way").at("route"), json.at("way").at("top")};
    m.looks = json.at("looks");
    m.last = json.at("last");
    m.rolling_since = json.at("rolling_since");
    if (json.at("log_m").is_number()) m.log_m = json.at("log_m");
    m.newest = {json.at("newest").at(0), json.at("newest").at(1), json.at("newest").at(2), false};
    m.calls = json.at("calls").get<LogprobCalls>();
    m.texts = json.at("texts").get<Texts>();
    return m;
  } catch (const Json::exception& e) {
    throw Error(ErrorKind::kData, where + ": " + e.what());
  }
}

// Sends every prompt once, and repeats that `calls` times, each time on a new connection. If the model changes during a
// poll, or another backend answers, all prompts are affected alike.
LogprobCalls ask_logprobs(Endpoint& endpoint, const Way& way, int calls) {
  LogprobCalls sample(std::size(kPrompts));
  for (int i = 0; i < calls; ++i) {
    endpoint.reconnect();
    for (size_t p = 0; p < sample.size(); ++p) sample[p].push_back(endpoint.first_token(way, kPrompts[p]));
  }
  return sample;
}
std::vector<std::string> ask_texts(Endpoint& endpoint, const Way& way) {
  std::vector<std::string> texts;
  for (const std::string& prompt : canaries()) texts.push_back(endpoint.greedy(way, prompt, kCanaryTokens));
  return texts;
}

class Watch {
 public:
  Watch(const TargetWatchOptions& options, const WatchedPair& pair, const Clock& clock)
      : options_(options),
        pair_(pair),
        now_(clock.unix_seconds()),
        endpoint_({options.url, options.api_key, options.model, options.sleep}) {
    level_ = std::clamp(options.false_alarm_every_days * 86400 / options.every_s, kMinAlarm, kMaxAlarm);
    permutations_ = std::clamp(static_cast<int>(2 * level_), kMinPermutations, kMaxPermutations);
  }

  TargetCheck look(const std::string& memory) {
    identity_ = endpoint_.identity();
    if (identity_.contains(kSpecdecTarget)) return by_fingerprint();
    if (!memory.empty()) m_ = memory_of(memory);
    if (m_.last > now_) m_.last = 0;  // a time in the future came from a clock that was wrong
    m_.rolling_since = std::min(m_.rolling_since, now_);
    if (m_.package != pair_.package || m_.url != endpoint_.url()) {
      m_ = WatchMemory{};
      begin();
    } else if (m_.stale.empty()) {
      find_changes();
      if (!changes_.empty() || m_.rolling_since != 0 || static_cast<double>(now_ - m_.last) >= options_.every_s)
        go_on();
    }
    return result();
  }

 private:
  TargetCheck by_fingerprint() {
    const std::string served = identity_[kSpecdecTarget];
    TargetCheck out;
    out.named = served;
    if (!same_target(served, pair_.target))
      out.stale = endpoint_.url() + " serves another target than the draft was validated for (" + served.substr(0, 12) +
                  ", bound to " + pair_.target.substr(0, 12) + ")";
    out.evidence = {{"url", endpoint_.url()}, {"watched_by", "fingerprint"}, {"identity", identity_}};
    return out;
  }

  // Makes the first poll; the current answers become the reference.
  void begin() {
    m_.package = pair_.package;
    m_.url = endpoint_.url();
    m_.way = endpoint_.find_way().value_or(Way{});
    if (m_.way.top > 0) {
      m_.calls = ask_logprobs(endpoint_, m_.way, options_.calls);
    } else if (!m_.way.route.empty()) {
      const auto first = ask_texts(endpoint_, m_.way), second = ask_texts(endpoint_, m_.way);
      for (size_t i = 0; i < first.size(); ++i) m_.texts.push_back({first[i], second[i]});
    }
    take_identity();
    m_.looks = 1;
    m_.last = now_;
  }

  void take_identity() {
    m_.identity = identity_;
    if (!endpoint_.system_fingerprint().empty()) m_.identity["system_fingerprint"] = endpoint_.system_fingerprint();
  }

  // Finds the keys for which the endpoint's stored and current descriptions of itself have different values.
  void find_changes() {
    for (const auto& [key, value] : identity_.items())
      if (m_.identity.contains(key) && m_.identity[key] != value)
        changes_.push_back(key + " " + m_.identity[key].dump() + " → " + value.dump());
  }
  bool says_another() const {
    return std::any_of(std::begin(kDecisive), std::end(kDecisive), [&](const char* key) {
      return identity_.contains(key) && m_.identity.contains(key) && m_.identity[key] != identity_[key];
    });
  }

  void go_on() {
    PhiloxStream stream(kSeed, static_cast<uint64_t>(m_.looks));
    const bool by_logprobs = m_.way.top > 0;
    if (m_.way.route.empty()) {
      if (says_another()) m_.stale = endpoint_.url() + " reports that it serves something else: " + changes_.front();
    } else if (by_logprobs) {
      const LogprobCalls newest = logprobs_as_before();
      m_.newest = compare(m_.calls, newest, permutations_, stream);
      if (is_rolling()) return;
      judge("log-probabilities differ by " + format("%.2g", m_.newest.statistic) + " nats", kSmallestDifference);
      if (m_.stale.empty()) m_.calls = thin(m_.calls, newest, kPoolLooks * static_cast<size_t>(options_.calls), stream);
    } else {
      const auto newest = ask_texts(endpoint_, m_.way);
      m_.newest = compare(m_.texts, newest, permutations_, stream);
      judge(std::to_string(static_cast<int>(std::lround(100 * m_.newest.share_changed))) +
                " of 100 greedy texts differ from the earlier ones sooner than those differ from each other",
            0);
      if (m_.stale.empty()) m_.texts = thin(m_.texts, newest, kPoolTexts, stream);
    }
    if (const std::string build = m_.identity.value("system_fingerprint", ""), now = endpoint_.system_fingerprint();
        !build.empty() && !now.empty() && build != now)
      changes_.push_back("system_fingerprint " + build + " → " + now);
    if (m_.stale.empty()) take_identity();
    m_.rolling_since = 0;
    ++m_.looks;
    m_.last = now_;
  }

  LogprobCalls logprobs_as_before() {
    try {
      return ask_logprobs(endpoint_, m_.way, options_.calls);
    } catch (const PageError& e) {
      throw PageError(std::string(e.what()) +
                      "; it gave them before (--acknowledge starts over with what it gives now)");
    }
  }

  // Returns whether the answers show a rolling update: only some of the backends answer as before. The caller does not
  // add such answers to the earlier answers with which later ones are compared. After a day with the same answers,
  // returns false.
  bool is_rolling() {
    if (!m_.newest.two_modes || m_.newest.p > 0.01) return false;
    if (m_.rolling_since == 0) m_.rolling_since = now_;
    if (now_ - m_.rolling_since >= kRollingPatienceSeconds) return false;
    wait_ = endpoint_.url() +
            ": a rolling update: " + std::to_string(static_cast<int>(std::lround(100 * m_.newest.share_changed))) +
            " of 100 answers come from another model than before; the next check looks again";
    return true;
  }

  void judge(const std::string& what, double smallest) {
    m_.log_m = next_log_m(m_.log_m, e_value(m_.newest.p, permutations_));
    if (m_.log_m < std::log(level_) || m_.newest.statistic < smallest) return;
    m_.stale = endpoint_.url() + " answers as another model than before: " + what + " (p " +
               format("%.2g", m_.newest.p) + (changes_.empty() ? "" : "; " + changes_.front()) + ")";
  }

  TargetCheck result() const {
    TargetCheck out;
    out.stale = m_.stale;
    out.wait = wait_;
    out.memory = text_of(m_);
    const char* by = m_.way.top > 0 ? "log-probabilities" : m_.way.route.empty() ? "identity" : "greedy texts";
    out.evidence = {{"url", m_.url},
                    {"watched_by", by},
                    {"identity", identity_},
                    {"changes", changes_},
                    {"looks", m_.looks},
                    {"last_look", format_utc(m_.last)},
                    {"statistic", m_.newest.statistic},
                    {"p", m_.newest.p},
                    {"share_changed", m_.newest.share_changed},
                    {"log10_alarm", std::log10(level_)},
                    {"log10_e", std::isfinite(m_.log_m) ? Json(m_.log_m / std::log(10)) : Json()}};
    if (m_.way.route.empty())
      out.evidence["not_watched"] =
          "the endpoint gives neither log-probabilities nor text: only the fields that it reports about itself are "
          "compared";
    else if (m_.way.top == 0)
      out.evidence["not_watched"] =
          "the endpoint gives no log-probabilities: a change that does not alter 64 greedy texts is not noticed, and "
          "rolling updates cannot be recognised";
    return out;
  }

  const TargetWatchOptions& options_;
  const WatchedPair& pair_;
  int64_t now_;
  Endpoint endpoint_;
  double level_ = 0;
  int permutations_ = 0;
  Json identity_;
  WatchMemory m_;
  std::vector<std::string> changes_;
  std::string wait_;
};

}  // namespace

TargetCheck watch_target(const TargetWatchOptions& options, const WatchedPair& pair, const std::string& memory,
                         const Clock& clock) {
  if (options.calls < 8 || options.calls > 256)
    throw Error(ErrorKind::kUsage, "--target-calls: expected 8 to 256, found " + std::to_string(options.calls));
  if (!(options.every_s > 0)) throw Error(ErrorKind::kUsage, "--target-every: expected a time");
  return Watch(options, pair, clock).look(memory);
}

}  // namespace specdec::monitor
