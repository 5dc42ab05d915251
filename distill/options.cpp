#include "distill/options.h"

#include <charconv>
#include <cmath>

#include "base/error.h"

namespace specdec::distill {

namespace {

void require(bool ok, const std::string& flag, const std::string& expected) {
  if (!ok) throw Error(ErrorKind::kUsage, flag + ": expected " + expected);
}

}  // namespace

Loss parse_loss(const std::string& name) {
  if (name == "ce") return Loss::kCrossEntropy;
  if (name == "kl") return Loss::kKl;
  if (name == "tv") return Loss::kTv;
  if (name == "lk_hybrid") return Loss::kLkHybrid;
  throw Error(ErrorKind::kUsage, "--loss: expected ce, kl, tv or lk_hybrid, found '" + name + "'");
}

std::string to_string(Loss loss) {
  switch (loss) {
    case Loss::kCrossEntropy:
      return "ce";
    case Loss::kKl:
      return "kl";
    case Loss::kTv:
      return "tv";
    case Loss::kLkHybrid:
      return "lk_hybrid";
  }
  throw Error(ErrorKind::kInternal, "losses: unknown loss");
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
  } else if ((spec.kind == "model" || spec.kind == "config") && !spec.argument.empty()) {
    return spec;
  }
  throw Error(ErrorKind::kUsage,
              "--draft: expected prune:N (N layers of the target), model:MODEL or config:FILE, found '" + text + "'");
}

void validate(const DistillOptions& o) {
  require(!o.target.empty(), "--target", "a model");
  require(!o.data.empty(), "--data", "a directory written by `specdec data ingest`");
  require(!o.out.empty(), "--out", "a directory to write");
  parse_draft_spec(o.draft);
  parse_loss(o.loss);
  require(o.lk_eta >= 0 && o.lk_eta <= 1000, "--lk-eta", "a number in [0, 1000]");
  require(o.learning_rate >= 0 && std::isfinite(o.learning_rate), "--lr", "a number > 0, or 0 for the default");
  require(o.min_lr_ratio >= 0 && o.min_lr_ratio <= 1, "--min-lr-ratio", "a number in [0, 1]");
  require(o.warmup_ratio >= 0 && o.warmup_ratio <= 1, "--warmup-ratio", "a number in [0, 1]");
  require(o.weight_decay >= 0 && o.weight_decay <= 1, "--weight-decay", "a number in [0, 1]");
  require(o.clip >= 0, "--clip", "a number >= 0 (0 = off)");
  require(o.beta1 >= 0 && o.beta1 < 1, "--beta1", "a number in [0, 1)");
  require(o.beta2 >= 0 && o.beta2 < 1, "--beta2", "a number in [0, 1)");
  require(o.epsilon > 0, "--epsilon", "a number > 0");
  require(o.batch_tokens >= 2 && o.batch_tokens <= (int64_t{1} << 26), "--batch-tokens", "a number in [2, 67108864]");
  require(o.accumulate >= 1 && o.accumulate <= 65536, "--accumulate", "a number in [1, 65536]");
  require(o.sequence_length == 0 || o.sequence_length >= 2, "--sequence-length", "at least 2, or 0 for the longest row");
  require(o.max_steps >= 0, "--max-steps", "a number >= 1, or 0 for no limit");
  require(o.epochs >= 0 && o.epochs <= 1e6, "--epochs", "a number in (0, 1000000], or 0");
  require(o.time_limit_seconds >= 0, "--time-limit", "a duration");
  require(o.evaluate_every >= 0, "--evaluate-every", "a number of steps, or 0 for ten evaluations");
  require(o.evaluate_rows >= 1, "--evaluate-rows", "a number >= 1");
  require(o.checkpoint_every >= 0, "--checkpoint-every", "a number of steps, or 0 for at evaluations");
  require(o.temperature > 0 && o.temperature <= 10, "--temperature", "a number in (0, 10]");
  require(o.teacher_cache_mib >= 0 && o.teacher_cache_mib <= (int64_t{1} << 24), "--teacher-cache", "MiB in [0, 16777216]");
  specdec::validate(o.device);
}

}  // namespace specdec::distill
