#include "distill/settings/options.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/file.h"

namespace specdec::distill {

namespace {

void require(bool ok, const std::string& flag, const std::string& expected) {
  if (!ok) throw Error(ErrorKind::kUsage, flag + ": expected " + expected);
}

constexpr std::pair<const char*, double LossMix::*> kTerms[] = {{"ce", &LossMix::ce},
                                                                {"kl", &LossMix::kl},
                                                                {"rkl", &LossMix::rkl},
                                                                {"jsd", &LossMix::jsd},
                                                                {"tv", &LossMix::tv},
                                                                {"nla", &LossMix::nla},
                                                                {"lk_hybrid", &LossMix::lk_hybrid}};

}  // namespace

bool LossMix::needs_target() const {
  return std::any_of(std::begin(kTerms), std::end(kTerms),
                     [&](const auto& term) { return term.second != &LossMix::ce && this->*term.second > 0; });
}

LossMix parse_loss(const std::string& text) {
  const auto fail = [&](const std::string& what) {
    throw Error(ErrorKind::kUsage,
                "--loss '" + text.substr(0, 80) + "': " + what +
                    "; expected ce, kl, rkl, jsd, jsd:BETA, tv, nla or lk_hybrid, or a sum such as 0.1*ce+0.9*tv");
  };
  const auto number = [&](const std::string& digits, double low, double high) {
    double value = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || stop != digits.data() + digits.size() || !(value > low && value < high))
      fail("'" + digits + "' is no fitting number");
    return value;
  };
  LossMix mix;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('+', begin), text.size());
    std::string term = text.substr(begin, end - begin);
    begin = end + 1;
    const size_t star = term.find('*');
    const double weight = star == std::string::npos ? 1 : number(term.substr(0, star), 0, 1e6);
    if (star != std::string::npos) term.erase(0, star + 1);
    if (term.starts_with("jsd:")) {
      mix.beta = number(term.substr(4), 0, 1);
      term = "jsd";
    }
    const auto* known =
        std::find_if(std::begin(kTerms), std::end(kTerms), [&](const auto& t) { return term == t.first; });
    if (known == std::end(kTerms)) fail("'" + term + "' is no loss");
    if (mix.*known->second > 0) fail("'" + term + "' is there twice");
    mix.*known->second = weight;
  }
  return mix;
}

const NewHead* new_head(const DraftSpec& spec) {
  const auto* const found =
      std::ranges::find_if(kNewHeads, [&](const NewHead& head) { return spec.kind == head.draft; });
  return found == std::end(kNewHeads) ? nullptr : found;
}

DraftSpec parse_draft_spec(const std::string& text) {
  DraftSpec spec;
  const size_t colon = text.find(':');
  spec.kind = text.substr(0, colon);
  if (colon != std::string::npos) spec.argument = text.substr(colon + 1);
  if (spec.kind == "prune") {
    const char* end = spec.argument.data() + spec.argument.size();
    const auto [stop, error] = std::from_chars(spec.argument.data(), end, spec.layers);
    if (error == std::errc() && stop == end && spec.layers >= 1) return spec;
  } else if (new_head(spec) && colon == std::string::npos) {
    return spec;
  } else if ((spec.kind == "model" || spec.kind == "config") && !spec.argument.empty()) {
    return spec;
  }
  throw Error(
      ErrorKind::kUsage,
      "--draft: expected prune:N (N layers of the target), model:MODEL, config:FILE or eagle3, found '" + text + "'");
}

Json read_config_file(const DraftSpec& spec) {
  if (fs::is_directory(spec.argument))
    throw Error(ErrorKind::kModel, "--draft config:" + spec.argument +
                                       ": found a directory, expected its file: give config:" +
                                       (fs::path(spec.argument) / "config.json").string());
  return read_json(spec.argument, ErrorKind::kModel);
}

std::vector<std::string> parse_compared(const std::string& text) {
  std::vector<std::string> kinds;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string kind = text.substr(begin, end - begin);
    begin = end + 1;
    try {
      parse_draft_spec(kind);
    } catch (const Error&) {
      throw Error(ErrorKind::kUsage,
                  "--compare: expected kinds such as prune:1,prune:2,model:MODEL,config:FILE,eagle3, "
                  "found '" +
                      kind + "'");
    }
    if (std::find(kinds.begin(), kinds.end(), kind) != kinds.end())
      throw Error(ErrorKind::kUsage, "--compare: '" + kind + "' is there twice");
    kinds.push_back(kind);
  }
  if (kinds.size() < 2) throw Error(ErrorKind::kUsage, "--compare: expected at least two kinds, found '" + text + "'");
  return kinds;
}

TeacherSpec parse_teacher(const std::string& text) {
  if (text == "target") return {};
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon), argument = colon == std::string::npos ? "" : text.substr(colon + 1);
  if (kind == "hidden" && !argument.empty()) return {TeacherSpec::Kind::kHidden, argument};
  if (kind == "labels" && !argument.empty()) return {TeacherSpec::Kind::kLabels, argument};
  if (kind == "http" || kind == "https") return {TeacherSpec::Kind::kEndpoint, text};
  throw Error(ErrorKind::kUsage,
              "--teacher: expected target, hidden:DIR, labels:DIR or the URL of an endpoint, found '" + text + "'");
}

namespace {

void validate_teacher_ranks(const DistillOptions& o) {
  require(o.teacher_ranks >= 1 && o.teacher_ranks <= 1024, "--teacher-parallel", "a number of processes in [1, 1024]");
  if (o.teacher_ranks == 1) return;
  const std::string flag = "--teacher-parallel " + std::to_string(o.teacher_ranks);
  require(parse_teacher(o.teacher).kind == TeacherSpec::Kind::kTarget, flag,
          "--teacher target: answers from elsewhere need no target here");
  require(!o.forecast.wanted && o.compared.empty(), flag, "no --forecast or --compare, which one process makes");
  require(parse_draft_spec(o.draft).kind != "prune", flag,
          "--draft model:, config: or eagle3: prune takes whole layers of the target, and each process has a share of "
          "them");
}

}  // namespace

void validate(const DistillOptions& o) {
  require(!o.target.empty(), "--target", "a model");
  require(!o.data.empty(), "--data", "a directory written by `specdec data ingest`");
  require(!o.out.empty(), "--out", "a directory to write");
  parse_draft_spec(o.draft);
  parse_loss(o.loss);
  parse_teacher(o.teacher);
  validate_teacher_ranks(o);
  require(o.draft_vocab >= 0, "--draft-vocab", "a number of tokens, or 0 for all");
  require(o.lk_eta >= 0 && o.lk_eta <= 1000, "--lk-eta", "a number in [0, 1000]");
  require(o.learning_rate >= 0 && std::isfinite(o.learning_rate), "--lr", "a number > 0, or 0 for the default");
  require(o.min_lr_ratio >= 0 && o.min_lr_ratio <= 1, "--min-lr-ratio", "a number in [0, 1]");
  require(o.warmup_ratio >= 0 && o.warmup_ratio <= 1, "--warmup-ratio", "a number in [0, 1]");
  require(o.weight_decay >= 0 && o.weight_decay <= 1, "--weight-decay", "a number in [0, 1]");
  require(o.clip >= 0, "--clip", "a number >= 0 (0 = off)");
  require(o.beta1 >= 0 && o.beta1 < 1, "--beta1", "a number in [0, 1)");
  require(o.beta2 >= 0 && o.beta2 < 1, "--beta2", "a number in [0, 1)");
  require(o.epsilon > 0, "--epsilon", "a number > 0");
  require(o.batch_tokens == 0 || (o.batch_tokens >= 2 && o.batch_tokens <= (int64_t{1} << 26)), "--batch-tokens",
          "a number in [2, 67108864], or 0 for the default");
  require(o.accumulate >= 0 && o.accumulate <= 65536, "--accumulate", "a number in [1, 65536], or 0 for the default");
  require(o.sequence_length == 0 || o.sequence_length >= 2, "--sequence-length",
          "at least 2, or 0 for the longest row");
  require(o.max_steps >= 0, "--max-steps", "a number >= 1, or 0 for no limit");
  require(o.epochs >= 0 && o.epochs <= 1e6, "--epochs", "a number in (0, 1000000], or 0");
  require(o.time_limit_seconds >= 0, "--time-limit", "a duration");
  require(o.evaluate_every >= 0, "--evaluate-every", "a number of steps, or 0 for ten evaluations");
  require(o.evaluate_rows >= 0, "--evaluate-rows", "a number >= 1, or 0 for the default");
  require(o.checkpoint_every >= 0, "--checkpoint-every", "a number of steps, or 0 for at evaluations");
  require(o.ttt_steps >= 1 && o.ttt_steps <= 16, "--ttt-steps", "a number of drafted positions in [1, 16]");
  require(o.ttt_decay > 0 && o.ttt_decay <= 1, "--ttt-decay", "a number in (0, 1]");
  require(o.on_policy == 0 || (o.on_policy >= 2 && o.on_policy <= 16), "--on-policy",
          "a number of tokens in [2, 16], or 0 for none");
  require(o.anchors > 0 && o.anchors <= 1, "--anchors", "a number in (0, 1]");
  const NewHead* const head = new_head(parse_draft_spec(o.draft));
  const std::string head_name = head ? name_of(head->kind) : "";
  require(o.on_policy == 0 || !head, "--on-policy",
          "0 for " + head_name + ", whose training always goes on by itself (--ttt-steps)");
  require(o.on_policy == 0 || parse_loss(o.loss).needs_target(), "--on-policy",
          "0 for the loss ce: the draft's own tokens have no labels");
  require(o.on_policy == 0 || parse_teacher(o.teacher).kind == TeacherSpec::Kind::kTarget, "--on-policy",
          "0 for --teacher " + o.teacher + ": only the target in this process can score what the draft writes");
  require(!o.recompute || o.on_policy == 0, "--recompute",
          "no --on-policy: the draft's own tokens read the keys and values that recomputing would not keep");
  require(!head || (!o.served_temperatures && o.rejects.empty()),
          o.rejects.empty() ? "--served-temperatures" : "--rejects",
          "a decoder as --draft: only decoders learn with it");
  require(!o.served_temperatures || parse_teacher(o.teacher).kind == TeacherSpec::Kind::kTarget ||
              parse_teacher(o.teacher).kind == TeacherSpec::Kind::kHidden,
          "--served-temperatures", "--teacher target or hidden:DIR: labels have the temperature they were made at");
  require(o.reject_weight >= 0 && o.reject_weight <= 100, "--reject-weight", "a number in [0, 100]");
  require(o.temperature > 0 && o.temperature <= 10, "--temperature", "a number in (0, 10]");
  require(o.temperature == 1 || parse_teacher(o.teacher).kind != TeacherSpec::Kind::kEndpoint, "--temperature",
          "1 for --teacher " + o.teacher + ": an endpoint returns the probabilities at no other");
  require(o.contexts == "target" || o.contexts == "data", "--contexts", "target or data, found '" + o.contexts + "'");
  require(o.teacher_cache_mib >= 0 && o.teacher_cache_mib <= (int64_t{1} << 24), "--teacher-cache",
          "MiB in [0, 16777216]");
  specdec::validate(o.device);
  require(o.device.dtype != "int8", "--dtype",
          "auto, fp32, bf16 or fp16 (int8 weights have no gradients; decode with them once the draft is trained)");
}

}  // namespace specdec::distill
