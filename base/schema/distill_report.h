// result.json of `distill` (schema "specdec.distill/1"): the verdict on the trained draft, and the figures that support
// it. --forecast and --compare read it of their runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/fields.h"
#include "base/statistics.h"
#include "base/verdict.h"
#include "base/version.h"

namespace specdec {

// A figure with its 95 % interval. Numbers that are not known or infinite are absent, and null in JSON.
struct DistillFigure {
  std::optional<double> value, low, high;
};
std::optional<double> if_finite(double x);  // nothing for NaN and infinities
DistillFigure distill_figure(const Estimate& estimate);
void visit_figure(Fields& f, DistillFigure& figure);  // the fields "value" and "ci"
void visit_fields(Fields& f, DistillFigure& figure);

// The draft before or after training. Acceptance by tokens and greedy agreement are only written with an acceptance.
struct DistillSide {
  DistillFigure figure;
  std::optional<double> tokens, greedy_agreement, cross_entropy;
};

// The acceptance of a part of the held-out requests: a stretch of the answers, or a domain.
struct DistillPart {
  std::string name;
  std::optional<DistillFigure> before = {};
  DistillFigure after = {};
  int64_t requests = 0, conversations = 0, tokens = 0;
};

// The scores that the verdict was judged by: acceptance, or cross entropy where the target has no weights.
struct DistillScores {
  bool by_acceptance = true;
  DistillSide before, after;
  DistillFigure difference;
  int64_t requests = 0, conversations = 0, tokens = 0;
  double level = 0.95;
  // If the target's answers are known only in part, the acceptance is an upper bound. Then `rest` is the probability
  // that is known only as a sum, and `certain` the least gain.
  std::optional<double> rest;
  std::optional<DistillFigure> certain;
  std::vector<DistillPart> by_position, by_domain;
};

struct DistillTraining {
  struct Measured {
    int64_t step = 0;
    std::optional<double> score = {}, loss = {};
    Json ci = nullptr;  // [low, high], null if there is none
  };
  int64_t steps = 0, tokens = 0;
  double seconds = 0, tokens_per_second = 0;
  std::optional<double> last_loss = {};
  int64_t skipped_steps = 0, roll_backs = 0, kept_step = 0;
  std::string selected_by = "";  // "acceptance" or "cross_entropy"
  int64_t selection_requests = 0, selection_conversations = 0;
  std::vector<Measured> measured = {};
  std::vector<double> deeper_acceptance = {};
  Json chosen = nullptr, layers = nullptr;  // settings that the options left open; record of the search for layers
};

struct DistillCost {
  double seconds = 0, training_seconds = 0;
  int64_t training_tokens = 0;
  double tokens_per_second = 0;
  std::string device = "";
  int processes = 1;
  std::string dtype = "", dtype_reason = "";
  std::optional<double> teacher_share = {};
};

struct DraftOutput {
  std::string path, id;
};

// The fields after the verdict with which the reports of a run, of a forecast and of a comparison begin.
struct DistillHead {
  std::string started;
  double seconds = 0;
  std::string tool_version = kToolVersion;
  std::string reason;
  Json inputs = Json::object(), options = Json::object();
};
void visit_head(Fields& f, DistillHead& head);

struct DistillReport : DistillHead {
  static constexpr int kVersion = 1;
  Verdict verdict = Verdict::kInconclusive;  // kImproved, kNoSignificantGain or kInconclusive
  Json data = Json::object();
  std::optional<DistillScores> scores;  // the fields "acceptance" or "cross_entropy"; none if nothing was trained
  std::optional<DistillTraining> training;
  std::optional<DistillCost> cost;  // absent in results of earlier versions
  std::string next, next_reason;
  Json draft_vocab = nullptr;  // how much of the text a reduced vocabulary covers, or null
  std::optional<DraftOutput> draft;
};
void visit_fields(Fields& f, DistillReport& report);

}  // namespace specdec
