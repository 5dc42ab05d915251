#include "distill/settings/repeat_flags.h"

#include <cmath>

#include "base/format.h"
#include "distill/settings/time_plan.h"

namespace specdec::distill {

namespace {

// Collects flags whose values are not the default.
class Flags {
 public:
  void text(const char* name, const std::string& value, const std::string& usual) {
    if (value != usual) words_.insert(words_.end(), {name, value});
  }
  void number(const char* name, double value, double usual) {
    if (value != usual) words_.insert(words_.end(), {name, format("%.10g", value)});
  }
  void count(const char* name, int64_t value, int64_t usual) {
    if (value != usual) words_.insert(words_.end(), {name, std::to_string(value)});
  }
  void flag(const char* name, bool given) {
    if (given) words_.emplace_back(name);
  }
  std::vector<std::string> words() { return std::move(words_); }

 private:
  std::vector<std::string> words_;
};

void add_training(Flags& f, const DistillOptions& o, const DistillOptions& usual) {
  f.text("--loss", o.loss, usual.loss), f.number("--lk-eta", o.lk_eta, usual.lk_eta);
  f.number("--temperature", o.temperature, usual.temperature);
  f.flag("--served-temperatures", o.served_temperatures);
  f.text("--rejects", o.rejects, ""), f.number("--reject-weight", o.reject_weight, usual.reject_weight);
  f.text("--contexts", o.contexts, usual.contexts);
  f.number("--lr", o.learning_rate, usual.learning_rate),
      f.number("--min-lr-ratio", o.min_lr_ratio, usual.min_lr_ratio);
  f.number("--warmup-ratio", o.warmup_ratio, usual.warmup_ratio);
  f.number("--weight-decay", o.weight_decay, usual.weight_decay), f.number("--clip", o.clip, usual.clip);
  f.number("--beta1", o.beta1, usual.beta1), f.number("--beta2", o.beta2, usual.beta2);
  f.number("--epsilon", o.epsilon, usual.epsilon);
  f.count("--batch-tokens", o.batch_tokens, 0), f.count("--accumulate", o.accumulate, 0);
  f.count("--sequence-length", o.sequence_length, 0);
  f.count("--ttt-steps", o.ttt_steps, usual.ttt_steps), f.number("--ttt-decay", o.ttt_decay, usual.ttt_decay);
  f.count("--on-policy", o.on_policy, 0), f.number("--anchors", o.anchors, usual.anchors);
  f.flag("--recompute", o.recompute);
  f.count("--teacher-cache", o.teacher_cache_mib, usual.teacher_cache_mib);
}

}  // namespace

std::vector<std::string> repeated_command(const DistillOptions& o) {
  const DistillOptions usual;
  Flags f;
  f.text("--target", o.target, ""), f.text("--data", o.data, ""), f.text("--draft", o.draft, "");
  f.count("--draft-vocab", o.draft_vocab, 0), f.text("--out", o.out, "");
  f.text("--teacher", o.teacher, usual.teacher), f.count("--teacher-parallel", o.teacher_ranks, usual.teacher_ranks);
  add_training(f, o, usual);
  f.count("--max-steps", o.max_steps, 0), f.number("--epochs", o.epochs, 0);
  if (o.time_limit_seconds > 0) f.text("--time-limit", duration_text(o.time_limit_seconds), "");
  f.count("--evaluate-every", o.evaluate_every, 0), f.count("--evaluate-rows", o.evaluate_rows, 0);
  f.count("--checkpoint-every", o.checkpoint_every, 0);
  f.flag("--shard-optimizer", o.shard_optimizer);
  f.text("--device", o.device.device, usual.device.device), f.text("--dtype", o.device.dtype, usual.device.dtype);
  if (o.device.seed != usual.device.seed) f.text("--seed", std::to_string(o.device.seed), "");
  f.count("--threads", o.device.threads, usual.device.threads);
  std::vector<std::string> words = f.words();
  words.insert(words.begin(), {"specdec", "distill"});
  return words;
}

std::vector<std::string> flags_of_gate(const DistillOptions& o) {
  const DistillOptions usual;
  Flags f;
  f.number("--temperature", o.temperature, usual.temperature);
  f.text("--contexts", o.contexts, usual.contexts);
  f.text("--device", o.device.device, usual.device.device);
  f.count("--threads", o.device.threads, usual.device.threads);
  return f.words();
}

DistillOptions longer_run(DistillOptions o, double factor) {
  if (o.max_steps > 0) o.max_steps = static_cast<int64_t>(std::ceil(factor * static_cast<double>(o.max_steps)));
  if (o.time_limit_seconds > 0) o.time_limit_seconds *= factor;
  if (o.epochs > 0) o.epochs *= factor;
  if (o.max_steps == 0 && o.epochs == 0 && o.time_limit_seconds == 0) o.epochs = 3 * factor;
  return o;
}

}  // namespace specdec::distill
