#include "monitor/read/counters.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <set>

#include "base/acceptance.h"
#include "base/schema/acceptance_range.h"
#include "monitor/read/series.h"

namespace specdec::monitor {

namespace {

// Limits of one page: its number of series (plus pairs of models), and the bytes of its label text.
constexpr size_t kMaxSeries = 20000, kMaxText = 8u << 20;
// Limit in bytes for the label text of a stored scrape, which may include replicas that no longer exist. If twice the
// label text of the newest page is larger than this number, that is the limit instead.
constexpr size_t kMaxGoneText = 1u << 20;
constexpr double kMostPerSecond = 1e7;  // tokens or steps per second of one replica; no server makes more
constexpr int64_t kShortestElapsed = 60, kUnknownElapsed = 86400;
// A server keeps counting while it writes its counters one after the other. So on a page, a counter (such as accepted
// tokens) may exceed its upper bound (drafted tokens) by up to kSlackShare of the bound plus kSlack.
constexpr double kSlackShare = 0.05, kSlack = 4096;

constexpr const char* kExpectedFormat = ", expected Prometheus text format 0.0.4";

[[noreturn]] void bad_line(const std::string& where, size_t number, const std::string& reason) {
  throw PageError(where + ": line " + std::to_string(number) + ": " + reason + kExpectedFormat);
}

// Computes the sums of a scrape from its series.
void sum_up(Counters& c, const std::string& where) {
  for (const auto& [key, value] : c.series) {
    const Place place = place_of(parse_series(key, where));
    if (!place.known) continue;  // the state may be from a later version that knows this series
    if (place.has_no_position || place.is_beyond)
      throw Error(ErrorKind::kData, where + ": a series by position without a position up to " +
                                        std::to_string(kMaxPosition) + ": " + shown_label(key));
    if (place.known->meaning != Meaning::kGenerated) c.any = true;
    const auto add_at = [&](std::vector<double>& values) {
      if (values.size() <= place.position) values.resize(place.position + 1, 0.0);
      values[place.position] += value;
    };
    switch (place.known->meaning) {
      case Meaning::kDrafts:
        c.drafts += value;
        break;
      case Meaning::kDrafted:
        c.drafted += value;
        break;
      case Meaning::kAccepted:
        c.accepted += value;
        break;
      case Meaning::kGenerated:
        c.generated += value;
        break;
      case Meaning::kAcceptedAt:
        add_at(c.accepted_at);
        break;
      case Meaning::kDraftedAt:
        add_at(c.drafted_at);
        break;
      case Meaning::kReachedAt:
        add_at(c.reached_at);
        break;
      case Meaning::kOverlapAt:
        add_at(c.overlap_sum_at);
        break;
      case Meaning::kInfo:
        break;
    }
  }
}

class Collector {
 public:
  Collector(std::string where, std::string model) : where_(std::move(where)), model_(std::move(model)) {}

  void take(const Sample& s, size_t number) {
    const Place place = place_of(s);
    if (!place.known) return;
    if (place.known->meaning == Meaning::kInfo) {
      const auto label = [&](const char* key) { return s.labels.count(key) ? s.labels.at(key) : std::string(); };
      if (s.value == 0) return;
      std::string replica = replica_of(s);
      if (counters_.pairs.contains(replica) || has_room(replica.size()))
        counters_.pairs[std::move(replica)] = {label("draft"), label("target")};
      else
        beyond_.insert(std::move(replica));
      return;
    }
    if (!in_range(AcceptanceFigure::kCounter, s.value))
      return set_aside(s, number, s.name + " is no count: expected " + range_of(AcceptanceFigure::kCounter).expected());
    if (place.has_no_position) return set_aside(s, number, "a series by position without a position");
    if (place.is_beyond) return;
    if (const auto model = s.labels.find("model_name"); model != s.labels.end()) {
      models_.insert(model->second);
      if (!model_.empty() && model->second != model_) return;
    } else {
      names_no_model_ = true;
    }
    const std::string key = series_text(place.known->name, s.labels);
    if (const auto first = names_.find(key); first != names_.end()) {
      if (first->second == s.name)  // otherwise the page has one counter under two names, which is no error
        set_aside(s, number,
                  shown_label(s.name) + " is there twice with the same labels: do two servers share this page?");
      return;
    }
    if (!has_room(key.size())) {
      beyond_.insert(replica_of(s));
      return;
    }
    engines_.insert(place.known->engine);
    names_.emplace(key, s.name);
    counters_.series[key] = s.value;
  }

  // Leaves out the replica whose series is in line `number` of the page.
  void set_aside(const Sample& s, size_t number, const std::string& reason) {
    bad_.emplace(replica_of(s), "line " + std::to_string(number) + ": " + reason);
  }

  Counters done() {
    if (engines_.size() > 1)
      throw PageError(where_ + ": counters of several engines (" + listed(engines_) +
                      "), expected one: narrow the match");
    const bool is_absent = !model_.empty() && !models_.empty() && !models_.contains(model_);
    if (is_absent || (model_.empty() && models_.size() > 1)) refuse_models();
    if (!engines_.empty()) counters_.engine = *engines_.begin();
    if (!bad_.empty() || !beyond_.empty())
      std::erase_if(counters_.series, [&](const auto& series) {
        const std::string replica = replica_of(series.first);
        return bad_.contains(replica) || beyond_.contains(replica);
      });
    if (!bad_.empty() && counters_.series.empty()) throw PageError(where_ + ": " + bad_.begin()->second);
    for (const auto& [replica, reason] : bad_) counters_.set_aside.add(shown_label(replica) + ": " + reason);
    if (!beyond_.empty())
      counters_.set_aside.add(std::to_string(beyond_.size()) + " replicas after the first " +
                              std::to_string(kMaxSeries) + " series, such as " + shown_label(*beyond_.begin()) +
                              ": narrow the match");
    sum_up(counters_, where_);
    return std::move(counters_);
  }

 private:
  static std::string listed(const std::set<std::string>& names) {
    Few few;
    for (const std::string& name : names) few.add(shown_label(name));
    std::string text;
    for (const std::string& name : few.lines()) text += (text.empty() ? "" : ", ") + name;
    return text;
  }

  // Returns whether another series with `text` bytes of label text fits the limits; if so, counts it. If not, the
  // caller leaves out the whole replica.
  bool has_room(size_t text) {
    const bool has = counters_.series.size() + counters_.pairs.size() < kMaxSeries && text_ + text <= kMaxText;
    if (has) text_ += text;
    return has;
  }

  // Handles a page with several models. If some replicas name no model, the page is that of one server, and the
  // replicas that name a model are left out. If every replica names its model, throws PageError.
  void refuse_models() {
    const std::string reason = "counters of " + listed(models_) +
                               (model_.empty() ? ", expected one model: give --model" : ", expected --model " + model_);
    if (!model_.empty() || !names_no_model_) throw PageError(where_ + ": " + reason);
    for (const auto& [key, value] : counters_.series)
      if (const Sample s = parse_series(key, where_); s.labels.contains("model_name"))
        bad_.emplace(replica_of(s), reason);
  }

  std::string where_, model_;
  Counters counters_;
  std::set<std::string> models_, engines_;
  bool names_no_model_ = false;               // some series have no model_name label
  std::map<std::string, std::string> names_;  // series → its name on the page
  std::map<std::string, std::string> bad_;    // replica → the problem with its lines
  std::set<std::string> beyond_;              // replicas that exceed the limits
  size_t text_ = 0;                           // bytes of label text of all series and pairs
};

size_t text_of(const std::map<std::string, double>& series) {
  size_t size = 0;
  for (const auto& [key, value] : series) size += key.size();
  return size;
}

// Returns the reason why a replica cannot have counted these numbers between two scrapes, "" = they are possible.
std::string contradiction(const Counters& c) {
  const auto above = [](double part, double whole) { return part > whole * (1 + kSlackShare) + kSlack; };
  if (c.drafted > 0 && above(c.accepted, c.drafted)) return "more accepted than drafted";
  for (size_t i = 0; i < c.overlap_sum_at.size(); ++i)
    if (above(c.overlap_sum_at[i], i < c.reached_at.size() ? c.reached_at[i] : 0)) return "an overlap above 1";
  for (size_t i = 0; i < c.accepted_at.size(); ++i) {
    if (!c.reached_at.empty() && above(c.accepted_at[i], i < c.reached_at.size() ? c.reached_at[i] : 0))
      return "more accepted than reached";
    if (c.drafts > 0 && above(c.accepted_at[i], c.drafts)) return "more accepted at a position than there were steps";
  }
  return "";
}

}  // namespace

double Counters::counted() const {
  return drafts + drafted + generated + std::accumulate(drafted_at.begin(), drafted_at.end(), 0.0);
}

std::set<std::string> Counters::replicas() const {
  std::set<std::string> replicas;
  for (const auto& [key, value] : series) replicas.insert(replica_of(key));
  return replicas;
}

void Counters::add(const Counters& other) {
  any = any || other.any;
  engine = other.engine;
  drafts += other.drafts;
  drafted += other.drafted;
  accepted += other.accepted;
  generated += other.generated;
  add_to(accepted_at, other.accepted_at);
  add_to(drafted_at, other.drafted_at);
  add_to(reached_at, other.reached_at);
  add_to(overlap_sum_at, other.overlap_sum_at);
}

Counters parse_exposition(const std::string& text, const std::string& where, const std::string& model) {
  Collector collector(where, model);
  size_t begin = 0, number = 0, first_bad = 0, samples = 0;
  std::string problem;
  while (begin < text.size()) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    if (++number > 100000) throw PageError(where + ": more than 100,000 lines");
    const PageLine line = parse_line(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    if (!line.problem.empty()) {
      if (place_of(line.sample).known) {
        if (!line.is_named) bad_line(where, number, line.problem);
        collector.set_aside(line.sample, number, line.problem + kExpectedFormat);
      }
      if (first_bad == 0) first_bad = number, problem = line.problem;
    }
    if (!line.is_sample) continue;
    ++samples;
    collector.take(line.sample, number);
  }
  if (samples == 0 && first_bad > 0) {
    if (const size_t first = text.find_first_not_of(" \t\r\n"); text[first] == '[' || text[first] == '{')
      throw PageError(where + ": JSON, expected Prometheus text format 0.0.4: is it /prometheus/metrics? (where " +
                      "TensorRT-LLM has it, with return_perf_metrics: true)");
    bad_line(where, first_bad, problem);
  }
  return collector.done();
}

Counters parse_query_answer(const std::string& text, const std::string& where, const std::string& model) {
  const auto bad = [&](const std::string& what) {
    throw PageError(where + ": " + what + ", expected a Prometheus server's answer with an instant vector");
  };
  Json answer;
  try {
    answer = parse_foreign_json(text, where, {});
  } catch (const Error& e) {
    throw PageError(e.what());
  }
  if (!answer.is_object() || answer.value("status", Json()) != "success" || !answer.contains("data") ||
      !answer["data"].is_object())
    bad("no success");
  const Json& data = answer["data"];
  if (data.value("resultType", Json()) != "vector" || !data.contains("result") || !data["result"].is_array())
    bad("no vector");
  Collector collector(where, model);
  size_t number = 0;
  for (const Json& item : data["result"]) {
    ++number;
    Sample s;
    if (!item.is_object() || !item.contains("metric") || !item["metric"].is_object() || !item.contains("value") ||
        !item["value"].is_array() || item["value"].size() != 2 || !item["value"][1].is_string())
      bad("sample " + std::to_string(number) + " has no labels and value");
    for (const auto& [key, value] : item["metric"].items()) {
      if (!value.is_string()) bad("sample " + std::to_string(number) + ": a label that is no text");
      (key == "__name__" ? s.name : s.labels[key]) = value.get<std::string>();
    }
    s.value = std::strtod(item["value"][1].get_ref<const std::string&>().c_str(), nullptr);
    collector.take(s, number);
  }
  return collector.done();
}

// Recomputes the sums after the series have changed.
void Counters::restore_sums() {
  Counters whole;
  whole.engine = engine;
  whole.time = time;
  whole.pairs = std::move(pairs);
  whole.set_aside = std::move(set_aside);
  whole.series = std::move(series);
  sum_up(whole, "state");
  *this = std::move(whole);
}

void Counters::keep(const std::function<bool(const ServedPair&)>& is_own) {
  std::set<std::string> others;
  for (const auto& [replica, pair] : pairs)
    if (!is_own(pair)) others.insert(replica);
  if (others.empty()) return;
  std::erase_if(series, [&](const auto& s) { return others.contains(replica_of(s.first)); });
  restore_sums();
}

void Counters::adopt(const Counters& now) {
  const std::set<std::string> own = replicas();
  for (const auto& [key, value] : now.series)
    if (!own.contains(replica_of(key))) series.emplace(key, value);
  const size_t most = std::min(kMaxText, std::max(kMaxGoneText, 2 * text_of(now.series)));
  if (series.size() > kMaxSeries || text_of(series) > most)
    std::erase_if(series, [&](const auto& s) { return !now.series.contains(s.first); });
  restore_sums();
}

Counters difference(const Counters& now, const Counters& before) {
  std::set<std::string> replicas, restarted;
  for (const auto& [key, value] : before.series) {
    const std::string replica = replica_of(key);
    replicas.insert(replica);
    if (const auto found = now.series.find(key); found != now.series.end() && found->second < value)
      restarted.insert(replica);
  }
  const bool timed = before.time > 0 && now.time > before.time;
  const double most = kMostPerSecond *
                      static_cast<double>(timed ? std::max(now.time - before.time, kShortestElapsed) : kUnknownElapsed);
  std::map<std::string, Counters> by_replica;
  std::map<std::string, std::string> bad;
  std::set<std::string> begun;
  Counters unseen;
  for (const auto& [key, value] : now.series) {
    const std::string replica = replica_of(key);
    if (!replicas.contains(replica)) {
      begun.insert(replica);
      unseen.series[key] = value;
      continue;
    }
    const auto old = before.series.find(key);
    const double rise = old == before.series.end() || restarted.contains(replica) ? value : value - old->second;
    if (rise > most) bad.emplace(replica, "a counter rose faster than any server can count");
    by_replica[replica].series[key] = rise;
  }
  Counters d;
  d.engine = now.engine;
  d.time = now.time;
  d.pairs = now.pairs;
  for (auto& [replica, counters] : by_replica) {
    sum_up(counters, "state");
    if (const std::string text = contradiction(counters); !text.empty()) bad.emplace(replica, text);
    if (const auto found = bad.find(replica); found != bad.end())
      d.set_aside.add((replica.empty() ? "" : shown_label(replica) + ": ") + found->second);
    else
      d.series.merge(counters.series);
  }
  sum_up(d, "state");
  d.any = now.any;
  for (const std::string& replica : begun) d.begun.add(shown_label(replica));
  sum_up(unseen, "state");
  d.unseen = unseen.counted();
  return d;
}

Json to_json(const Counters& c) { return {{"engine", c.engine}, {"time", c.time}, {"series", c.series}}; }

Counters counters_from_json(const Json& o, const std::string& where) {
  Counters c;
  // Written by a version that stored sums: counting starts again.
  if (!o.is_object() || !o.contains("series")) return c;
  c.engine = json_string(o, "engine", "", where, ErrorKind::kData);
  c.time = json_int(o, "time", {.low = 0, .high = kMaxCount, .fallback = 0}, where, ErrorKind::kData);
  for (const auto& [key, value] : json_object(o, "series", kMaxSeries, where, ErrorKind::kData).items()) {
    if (!value.is_number() || !in_range(AcceptanceFigure::kCounter, value.get<double>())) return {};
    c.series[key] = value.get<double>();
  }
  sum_up(c, where);
  return c;
}

}  // namespace specdec::monitor
