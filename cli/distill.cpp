#include <CLI/CLI.hpp>
#include <memory>

#include "base/clock.h"
#include "cli/command.h"
#include "cli/output.h"
#include "distill/settings/options.h"
#include "engine/parallel/launch.h"

namespace specdec::cli {

namespace {

void add_training_flags(CLI::App& sub, distill::DistillOptions& o) {
  const auto flag = [&](const char* name, auto& value, const char* help) {
    return sub.add_option(name, value, help)->capture_default_str()->group("Training");
  };
  flag("--loss", o.loss,
       "ce | kl | rkl | jsd[:BETA] | tv | nla | lk_hybrid (KL that turns into total variation as acceptance grows), or "
       "a sum: 0.1*ce+0.9*tv")
      ->type_name("ce|kl|rkl|jsd|jsd:BETA|tv|nla|lk_hybrid|SUM");
  flag("--lk-eta", o.lk_eta, "lk_hybrid: weight of KL = exp(-eta * acceptance)");
  flag("--temperature", o.temperature, "Temperature of both models, in the loss and in the measured acceptance");
  sub.add_flag(
         "--served-temperatures", o.served_temperatures,
         "Learn each conversation at the temperature that the log gives for it, greedy ones at 0.3; --temperature "
         "where it gives none")
      ->group("Training");
  sub.add_option("--rejects", o.rejects, "DIR of serve --record-rejects; tokens the target rejected weigh more")
      ->type_name("DIR")
      ->group("Training");
  flag("--reject-weight", o.reject_weight, "--rejects: their weight; other tokens have 1");
  flag("--contexts", o.contexts,
       "target: the target answers held-out prompts that somebody else has answered, as the gate does | data: measure "
       "on the text as it is")
      ->type_name("target|data");
  flag("--lr", o.learning_rate,
       "Peak learning rate, 0 = 0.012 * min(1, 64 / the draft's hidden size), a third of it for model:");
  flag("--min-lr-ratio", o.min_lr_ratio, "Final learning rate divided by the peak");
  flag("--warmup-ratio", o.warmup_ratio, "Share of the run that warms up");
  flag("--weight-decay", o.weight_decay, "Decoupled weight decay of the matrices");
  flag("--clip", o.clip, "Largest gradient norm, 0 = off");
  flag("--beta1", o.beta1, "AdamW");
  flag("--beta2", o.beta2, "AdamW");
  flag("--epsilon", o.epsilon, "AdamW");
  flag("--batch-tokens", o.batch_tokens,
       "Tokens per batch, padding included; 0 = as many as leave time for about 1,000 updates, by the measured time of "
       "one");
  flag("--accumulate", o.accumulate,
       "Batches per update; 0 = 1, or more where the default batch's logits would be large");
  flag("--sequence-length", o.sequence_length,
       "Longest row in tokens, longer ones are cut; 0 = the longest in the data, at most the models' context");
  flag("--ttt-steps", o.ttt_steps,
       "eagle3: drafted positions that a training step continues, each on the head's own rows");
  flag("--ttt-decay", o.ttt_decay, "eagle3: weight of drafted position i is this number to the power i");
  flag("--on-policy", o.on_policy,
       "Learn also where the draft goes on by itself: K tokens after random positions, scored by the target, weighted "
       "by "
       "what they add to the accepted length; 0 = learn on the text alone");
  flag("--anchors", o.anchors, "--on-policy: such positions per learnt token");
  sub.add_flag("--recompute", o.recompute,
               "Compute each layer's activations again in the backward pass instead of keeping them: less memory, more "
               "time, the same gradients. An EAGLE-3 head, which has one layer, keeps them")
      ->group("Training");
  flag("--teacher-cache", o.teacher_cache_mib, "MiB: keep the target's logits in memory if they all fit; 0 = never");
}

void add_teacher_flags(CLI::App& sub, distill::DistillOptions& o) {
  const auto flag = [&](const char* name, auto& value, const char* help) {
    return sub.add_option(name, value, help)->capture_default_str()->group("Teacher");
  };
  flag("--teacher", o.teacher,
       "target (runs in this process) | hidden:DIR (hidden states that vLLM or speculators wrote while serving it) | "
       "labels:DIR (written by data label) | URL http(s)://host[:port][/v1] (its labels are kept in OUT.labels)")
      ->type_name("target|hidden:DIR|labels:DIR|URL");
  flag("--teacher-parallel", o.teacher_ranks,
       "target: N neighbouring processes of the launcher hold it together, each a share of every large matrix, so that "
       "it need not fit on one device");
  flag("--top-k", o.endpoint.top_k, "With a URL: ask for this many likeliest tokens; 0 = 20");
  flag("--concurrency", o.endpoint.concurrency, "With a URL: requests at a time");
  sub.add_option("--model", o.endpoint.model, "With a URL: name of the model there (else the first of /v1/models)")
      ->type_name("NAME")
      ->group("Teacher");
  sub.add_option("--api-key-file", o.endpoint.key_file, "With a URL: file with the key (else OPENAI_API_KEY)")
      ->type_name("FILE")
      ->group("Teacher");
}

void add_limit_flags(CLI::App& sub, distill::DistillOptions& o) {
  const auto flag = [&](const char* name, auto& value, const char* help) {
    return sub.add_option(name, value, help)->capture_default_str()->group("Limits and checkpoints");
  };
  flag("--max-steps", o.max_steps, "Updates, 0 = by epochs or time");
  flag("--epochs", o.epochs, "Passes over the data, 0 = 3 unless another limit is given");
  sub.add_option_function<std::string>(
         "--time-limit",
         [&o](const std::string& text) {
           o.time_limit_seconds = parse_duration(text, "--time-limit", ErrorKind::kUsage);
         },
         "Time of the whole run, such as 90s, 15m, 1h30m: preparing, training, measuring and judging")
      ->type_name("DURATION")
      ->group("Limits and checkpoints");
  flag("--evaluate-every", o.evaluate_every, "Updates between measurements, 0 = ten in the run");
  flag("--evaluate-rows", o.evaluate_rows,
       "Held-out rows that choose the checkpoint; 0 = 64, fewer if the run is short");
  flag("--checkpoint-every", o.checkpoint_every, "Updates between checkpoints, 0 = at measurements");
  sub.add_flag("--resume", o.resume, "Resume the run in --out, or start one if there is none")
      ->group("Limits and checkpoints");
}

void add_forecast_flags(CLI::App& sub, distill::ForecastOptions& o) {
  sub.add_flag("--forecast", o.wanted,
               "Train on samples only, and forecast acceptance, time, speed-up and break-even of the whole run")
      ->group("Before a run");
  sub.add_option("--forecast-samples", o.samples,
                 "Training rows of each sample; default 1000,4000,16000, smaller where they would be more than a "
                 "quarter of the data")
      ->delimiter(',')
      ->group("Before a run");
}

// --compare replaces --draft, which is otherwise required, so the callback of --compare makes --draft optional. CLI11
// calls this callback before it looks for missing flags.
void add_compare_flag(CLI::App& sub, distill::DistillOptions& o) {
  sub.add_option_function<std::string>(
         "--compare",
         [&sub, &o](const std::string& text) {
           o.compared = distill::parse_compared(text);
           o.draft = o.compared.front();
           sub.get_option("--draft")->required(false);
         },
         "Train each of these kinds for the same share of the limits, and rank them by predicted speed-up")
      ->type_name("prune:N|model:MODEL|config:FILE|eagle3,...")
      ->excludes(sub.get_option("--draft"))
      ->excludes(sub.get_option("--forecast"))
      ->group("Before a run");
  sub.add_option("--costs", o.costs,
                 "JSON file with what each of these kinds costs in another engine (schema specdec.costs/1, "
                 "docs/distill.md); without it costs are measured on this machine")
      ->type_name("FILE")
      ->needs("--compare")
      ->group("Before a run");
}

int print_launch(const Global& global) {
  const parallel::Launch launch = parallel::detect_launch(parallel::process_environment());
  const std::string text = global.json ? to_json(launch).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"
                                       : parallel::launch_text(launch);
  write_output(text);
  return 0;
}

// --print-launch needs no other flag, so its callback makes the required flags optional. CLI11 calls this callback
// before it looks for missing flags.
void add_launch_flags(CLI::App& sub, distill::DistillOptions& o, bool& print) {
  sub.add_flag("--shard-optimizer", o.shard_optimizer,
               "Each process keeps AdamW's state of its share of the weights alone; the draft is the same. This is the "
               "default where the whole state does not fit into memory")
      ->group("Several processes");
  sub.add_flag_callback(
         "--print-launch",
         [&sub, &print] {
           print = true;
           for (CLI::Option* option : sub.get_options()) option->required(false);
         },
         "Print what the launcher (torchrun, srun, mpirun, Kubernetes) says of this process, and stop")
      ->group("Several processes");
}

}  // namespace

void add_distill(Cli& cli) {
  auto options = std::make_shared<distill::DistillOptions>();
  auto print = std::make_shared<bool>(false);
  CLI::App* sub = cli.app.add_subcommand(
      "distill", "Train a draft from the target; ends with the best measured draft and a verdict");
  sub->add_option("--target", options->target,
                  "MODEL; with --loss ce a directory with config.json and the tokenizer is enough")
      ->type_name("MODEL")
      ->required();
  sub->add_option("--data", options->data, "Directory written by data ingest")->type_name("DIR")->required();
  sub->add_option("--draft", options->draft,
                  "prune:N (N layers of the target) | model:MODEL | config:FILE (random weights) | eagle3 (a head that "
                  "reads the target's hidden states)")
      ->type_name("prune:N|model:MODEL|config:FILE")
      ->required();
  sub->add_option("--draft-vocab", options->draft_vocab,
                  "Number of tokens that the draft can propose, the commonest of the data; 0 = all, or those of the "
                  "model: draft")
      ->capture_default_str();
  sub->add_option("--out", options->out, "Directory to write: draft/, result.json, metrics.jsonl, checkpoints/")
      ->type_name("DIR")
      ->required();
  add_teacher_flags(*sub, *options);
  add_training_flags(*sub, *options);
  add_limit_flags(*sub, *options);
  add_forecast_flags(*sub, options->forecast);
  add_compare_flag(*sub, *options);
  add_launch_flags(*sub, *options, *print);
  add_device_flags(*sub, options->device);
  sub->footer(
      "Examples:\n"
      "  specdec distill --target T --data traffic --draft prune:2 --out run\n"
      "  specdec distill --target T --data traffic --draft eagle3 --draft-vocab 32000 --out run\n"
      "  specdec distill --target T --data traffic --draft model:small --out run --time-limit 15m\n"
      "  specdec distill --target T --data traffic --draft prune:2 --out run --resume        # after a stop or a "
      "crash\n"
      "  specdec distill --target T --data traffic --draft prune:2 --out run --time-limit 8h --forecast    # before it "
      "is paid for\n"
      "  specdec distill --target T --data traffic --compare prune:1,prune:2,eagle3 --out kinds --time-limit 3h\n"
      "  specdec distill --target T --data traffic --draft model:small --out run --teacher hidden:states\n"
      "  specdec distill --target T --data traffic --draft model:small --out run --teacher http://10.0.0.5:8000/v1\n"
      "  torchrun --no-python --nproc-per-node 8 specdec distill --target T --data traffic --draft prune:2 --out run\n"
      "  srun specdec distill --print-launch\n"
      "  specdec distill --target TOKENIZER_DIR --data text --draft config:config.json --loss ce --epochs 10 --out "
      "run\n"
      "Exit codes: 0 improved, 3 no significant gain, 4 too little data, 75 stopped by a signal with a checkpoint "
      "saved.\n"
      "With --forecast: 0 it will pay back, 3 no gain, 4 not to be said, 6 it never pays back. With --compare: 0 the "
      "best "
      "kind is faster than the target alone, 6 it may not be.\n"
      "TensorBoard can read --out directly.");
  sub->callback([&cli, options, print] {
    if (*print) {
      cli.selected = [&cli] { return print_launch(cli.global); };
      return;
    }
    cli.check = [options] { validate(*options); };
    select_engine(cli, cli.runners.distill, options);
  });
}

}  // namespace specdec::cli
