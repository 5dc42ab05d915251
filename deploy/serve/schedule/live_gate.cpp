#include "deploy/serve/schedule/live_gate.h"

#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "base/verdict.h"

namespace specdec::deploy {

void LiveGate::observe(const FinishedAnswer& answer) {
  const AcceptanceCounts& counts = answer.result.counts;
  const int64_t reached = counts.reached();
  if (answer.result.draft.empty() || reached < kLeastReached) return;
  const double overlap = counts.overlap_sum() / static_cast<double>(reached);
  const std::lock_guard lock(mutex_);
  auto track =
      std::find_if(tracks_.begin(), tracks_.end(), [&](const Track& t) { return t.draft == answer.result.draft; });
  if (track == tracks_.end()) {
    if (tracks_.size() == kDrafts) tracks_.pop_front();
    track = tracks_.insert(tracks_.end(), Track{answer.result.draft, ConfidenceSequence(), {}, {}});
  }
  size_t& of_tenant = track->by_tenant[answer.request->tenant];
  if (track->seen.size() >= kConversations || of_tenant >= of_one_tenant_ ||
      !track->seen.insert(std::hash<std::string>{}(answer.request->key())).second)
    return;
  ++of_tenant;
  track->sequence.observe(std::clamp(overlap, 0.0, 1.0));
}

void LiveGate::set_limit_of_one_tenant(size_t conversations) {
  const std::lock_guard lock(mutex_);
  of_one_tenant_ = conversations;
}

LiveGate::Reading LiveGate::read(const std::string& serving, const Json& trial) const {
  if (trial.is_object() && trial.value("candidate", Json()).is_object()) {
    Reading reading{"candidate", trial["candidate"].value("id", ""), {0, {0, 1}, 0}};
    const Json paired = trial.value("paired", Json::object());
    reading.acceptance.n = paired.value("conversations", int64_t{0});
    if (reading.acceptance.n > 0) {
      const Json& figures = paired["candidate"];
      reading.acceptance.value = figures["value"];
      reading.acceptance.ci = {figures["ci"][0], figures["ci"][1]};
    }
    return reading;
  }
  Reading reading{"serving", serving, {0, {0, 1}, 0}};
  const std::lock_guard lock(mutex_);
  for (const Track& track : tracks_)
    if (!serving.empty() && track.draft == serving.substr(0, kDraftLabel))
      reading.acceptance = track.sequence.estimate();
  return reading;
}

Json gate_json(const LiveGate::Reading& reading, double floor) {
  const Estimate& e = reading.acceptance;
  const Verdict verdict = e.n == 0            ? Verdict::kInconclusive
                          : e.ci.high < floor ? Verdict::kFail
                          : e.ci.low > floor  ? Verdict::kPass
                                              : Verdict::kInconclusive;
  return {{"schema", "specdec.gate/1"},
          {"verdict", verdict},
          {"acceptance", e.n > 0 ? Json(e.value) : Json()},
          {"ci", {e.ci.low, e.ci.high}},
          {"n", e.n},
          {"floor", floor},
          {"draft", reading.draft.empty() ? Json() : Json(reading.draft)},
          {"role", reading.role}};
}

std::string gate_metrics(const LiveGate::Reading& reading) {
  const Estimate& e = reading.acceptance;
  if (e.n == 0) return "";
  prometheus::Registry registry;
  const auto gauge = [&](const char* name, const char* help, double value) {
    prometheus::BuildGauge()
        .Name(std::string("specdec:") + name)
        .Help(help)
        .Register(registry)
        .Add({{"role", reading.role}}, value);
  };
  gauge("gate_acceptance", "Acceptance of the draft that GET /gate judges", e.value);
  gauge("gate_acceptance_low", "Lower end of the confidence sequence of gate_acceptance, one-sided 95 %", e.ci.low);
  gauge("gate_acceptance_high", "Upper end of the confidence sequence of gate_acceptance, one-sided 95 %", e.ci.high);
  gauge("gate_conversations", "Conversations that gate_acceptance was measured on", static_cast<double>(e.n));
  return prometheus::TextSerializer().Serialize(registry.Collect());
}

std::optional<double> gate_floor(const std::string& query, double fallback) {
  std::istringstream in(query);
  for (std::string item; std::getline(in, item, '&');) {
    if (item.rfind("floor=", 0) != 0) continue;
    const std::string text = item.substr(6);
    char* end = nullptr;
    const double floor = std::strtod(text.c_str(), &end);
    // strtod also accepts "1e-1", "nan" and hexadecimal numbers, which are refused here.
    const bool plain = !text.empty() && text.find_first_not_of("0123456789.") == std::string::npos;
    return plain && !*end && floor >= 0 && floor <= 1 ? std::optional(floor) : std::nullopt;
  }
  return fallback;
}

}  // namespace specdec::deploy
