#include "engine/decode/control/controller.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/acceptance.h"

namespace specdec::decode {

namespace {

// The buffers of choose(). Each thread keeps its own, so that a warm step allocates nothing.
struct Choice {
  // One level (depth) of a sequence's draft, as a candidate for drafting. The items of a sequence are in order of
  // level.
  struct Item {
    // reach: probability that this level is reached and accepted, times the sequence's weight. worth: reach divided by
    // `rows`, the rows that the level adds to the target pass; at most the worth of the level before.
    double reach, worth;
    int level, rows;
    size_t sequence;
  };
  std::vector<double> overlaps;  // expected overlap at each position, [max K]
  // seconds[i]: the cost of a target pass with i · apart more rows than a plain pass, in plain passes. share_depth()
  // chooses `apart`, so that with many sequences not every number of rows is computed.
  std::vector<double> seconds;
  std::vector<Item> items;
  std::vector<int> k;  // number of levels that each sequence would draft
  std::vector<KController*> undecided;
  static Choice& of_thread() {
    thread_local Choice choice;
    return choice;
  }
  std::span<double> overlaps_of(size_t k) {
    if (overlaps.size() < k) overlaps.resize(k);
    return std::span(overlaps).first(k);
  }
};
// If drafting seems to pay, but by less than the costs' uncertainty, the next probe (a step that drafts while K = 0)
// comes this many times sooner.
constexpr int kSoonerInDoubt = 3;

}  // namespace

const char* to_string(PlainReason reason) {
  constexpr const char* kNames[kPlainReasons] = {"no_draft", "request",   "draft_failed", "does_not_pay",
                                                 "schedule", "measuring", "no_room",      "catching_up",
                                                 "rules",    "from_text", "short_answer"};
  return kNames[static_cast<int>(reason)];
}

ControllerOptions controller_options(const SpeculationOptions& options) {
  ControllerOptions out;
  out.fixed_k = options.k;
  out.max_k = std::max(options.k, options.max_k);
  out.tree = options.tree;
  return out;
}

ControllerOptions suffix_controller_options(const SpeculationOptions& options) {
  ControllerOptions out = controller_options({.k = options.k, .max_k = options.max_k});
  out.free_draft = true;
  return out;
}

KController::KController(ControllerOptions options, const CostModel* costs)
    : options_(std::move(options)), costs_(costs), own_(options_.prior_overlap, std::max(options_.prior_weight, 1e-6)) {
  if (const int depth = static_cast<int>(options_.tree.size()); depth > 0) {
    options_.fixed_k = std::min(options_.fixed_k, depth);
    options_.max_k = std::min(options_.max_k, depth);
  }
  weight_.assign(static_cast<size_t>(std::max(options_.max_k, 1)), 0.0);
  sum_ = weight_;
  plain_owed_ = options_.plain_owed >= 0 ? options_.plain_owed : options_.probe_interval;
}

double KController::draft_cost(int batch) const {
  if (options_.free_draft) return 0;
  return costs_ ? costs_->draft_cost(batch) : options_.assumed_draft_cost;
}
double KController::verify_cost(int batch, int k) const {
  return costs_ ? costs_->verify_cost(batch, tree_nodes(options_.tree, k)) : 1.0;
}
double KController::pass_cost(int batch, int rows) const {
  return costs_ ? costs_->target_seconds(batch, batch + rows) : 1.0;
}

void KController::expect(int64_t to_read, int64_t to_come) {
  to_read_ = to_read;
  to_come_ = to_come;
}

// Returns the time of the draft's prefill, in units of the time of a plain step (a step without a draft).
double KController::reading() const {
  return costs_ && !options_.free_draft ? static_cast<double>(to_read_) * costs_->read_cost(batch_) : 0;
}

double KController::expected_overlap(int position) const {
  const auto i = static_cast<size_t>(std::max(position, 0)), own = std::min(i, weight_.size() - 1);
  // If options_.seen is null, the prior of each position is the request's own mean overlap, which counts as kOwn
  // observations. The weight is low, because the request's older steps add little to its recent ones.
  constexpr double kOwn = 2;
  const double weight = options_.seen ? options_.seen_weight : kOwn;
  return (sum_[own] + weight * seen().at(i)) / (weight_[own] + weight);
}

double KController::rate_of(int batch, std::span<const double> overlap, int k) const {
  return predicted_speedup(expected_length(overlap.first(static_cast<size_t>(k))), k, draft_cost(batch),
                           verify_cost(batch, k));
}

// Returns the highest predicted rate of any K, or 1 if no K beats plain decoding. A rate is the number of tokens per
// sequence in the time of a plain step. If fixed_k is set, returns the rate of fixed_k.
double KController::best_rate(int batch, std::span<const double> overlap) const {
  if (options_.fixed_k >= 0) return rate_of(batch, overlap, options_.fixed_k);
  double rate = 1;
  for (int k = 1; k <= options_.max_k; ++k) rate = std::max(rate, rate_of(batch, overlap, k));
  return rate;
}

void KController::expected_overlaps(std::span<double> out) const {
  for (size_t i = 0; i < out.size(); ++i) out[i] = expected_overlap(static_cast<int>(i));
}

double KController::expected_rate(int batch) const {
  if (!measured()) return 1;
  const std::span<double> overlaps = Choice::of_thread().overlaps_of(static_cast<size_t>(std::max(max_k(), 1)));
  expected_overlaps(overlaps);
  return best_rate(batch, overlaps);
}

// Returns the K to use before costs are known: that of the schedule, or 2 without a schedule.
int KController::unmeasured_k(int batch) const {
  int k = options_.schedule.empty() ? 2 : options_.schedule.front()[2];
  for (const auto& range : options_.schedule)
    if (batch >= range[0]) k = range[2];
  return std::min(k, options_.max_k);
}

int KController::choose_k(int batch) {
  KController* const self = this;
  choose({&self, 1}, batch);
  return decision_.k;
}

void KController::settle(int k, PlainReason plain) {
  decision_.k = k;
  decision_.plain = plain;
}

// Sets K if it does not depend on the expected gain: a fixed K, no draft, a plain pass for measurement, or unknown
// costs. Returns whether K was set.
bool KController::settled(int batch) {
  // If drafting gains little at this batch size, plain steps are measured more often: they cost almost nothing and show
  // when drafting no longer pays.
  const int64_t refresh = CostModel::kRefresh / (batch != batch_ || rate_ >= 1.2 ? 1 : rate_ < 1.1 ? 16 : 4);
  decision_ = {};
  rate_ = 1;
  batch_ = batch;
  exploring_ = false;
  if (options_.fixed_k >= 0) {
    rate_ = expected_rate(batch);
    settle(options_.fixed_k, PlainReason::kNoDraft);
  } else if (options_.max_k < 1) {
    settle(0, PlainReason::kNoDraft);
  } else if (costs_ && costs_->should_measure(batch, 1, refresh)) {
    settle(0, PlainReason::kMeasuring);
  } else if (!measured()) {
    settle(unmeasured_k(batch), PlainReason::kSchedule);
  } else {
    return false;
  }
  return true;
}

void KController::choose(std::span<KController* const> sequences, int batch) {
  std::vector<KController*>& open = Choice::of_thread().undecided;
  open.clear();
  for (KController* const s : sequences)
    if (!s->settled(batch)) open.push_back(s);
  share_depth(open, batch);
  const bool again = probe_again(open, batch);
  bool probes = false;
  for (KController* const s : sequences) {
    const PlainReason plain = s->decision_.plain;
    if (!s->adaptive() || (plain != PlainReason::kDoesNotPay && plain != PlainReason::kSchedule)) continue;
    if (s->decision_.k > 0) {
      // K has fallen to 0. The first probe (a step that drafts while K = 0) comes early, because the last overlaps may
      // have been low by chance.
      s->plain_owed_ = s->probe_interval() / 2;
    } else if (again || --s->plain_owed_ < 0) {
      s->probe();
      probes = true;
    }
  }
  for (KController* const s : open) {
    const int k = s->decision_.k;
    if (k == 0 && probes && s->decision_.plain != PlainReason::kShortAnswer) s->probe();
    // Also measures neighbours of K, because otherwise a K that looks bad due to an old or single measurement would
    // never be measured again. Trees are excluded, because their number of nodes per level depends on the text, so a
    // pass may never have the wanted number of rows.
    if (k == 0 || !s->costs_ || !s->options_.tree.empty()) continue;
    const int other = k < s->options_.max_k && s->costs_->should_measure(batch, k + 2) ? k + 1
                      : k > 1 && s->costs_->should_measure(batch, k)                   ? k - 1
                                                                                       : k;
    s->exploring_ = other != k;
    s->decision_.k = other;
  }
}

// Returns whether the probes of the last step (drafts that were tried although K = 0 seemed better) suggest that
// drafting pays. If so, the next step probes too, until drafting is chosen or no longer seems to pay.
bool KController::probe_again(std::span<KController* const> sequences, int batch) {
  double sum = 0;
  size_t probed = 0;
  for (const KController* const s : sequences) {
    if (s->probed_ < 0) continue;
    sum += s->probed_;
    ++probed;
  }
  if (probed == 0) return false;
  const KController& any = *sequences.front();
  const std::span<double> overlaps = Choice::of_thread().overlaps_of(static_cast<size_t>(any.options_.max_k));
  std::fill(overlaps.begin(), overlaps.end(), sum / static_cast<double>(probed));
  return any.best_rate(batch, overlaps) > 1 + any.options_.least_gain;
}

// Returns whether a rate exceeds 1 by the required gain even if the estimated pass costs are off by their uncertainty.
// The uncertainty of the overlaps is ignored, because drafting is the fastest way to reduce it.
bool KController::sure(double rate, int batch, int rows, bool drafts) const {
  // Sequences that already draft have demonstrated part of the gain, so half the margin suffices for them.
  const double doubt = costs_ ? costs_->target_doubt(batch, rows) : 0, share = drafts ? 0.5 : 1;
  return std::log(rate) - share * options_.doubts * doubt > std::log(1 + share * options_.least_gain);
}

// Returns the loss from uneven ends, as a share of the time until the end. Answers that would end together under plain
// decoding end one after the other under speculation. Consider n answers of R tokens with steps that emit tau ± σ
// tokens. The last answer needs more steps than the mean, by the share z_n · σ / √(R tau), where z_n is the expected
// maximum of n standard normal numbers. Each additional step costs the part of a pass that does not depend on its rows.
// Choice::k must hold the number of levels that each sequence would draft.
double KController::unevenness(std::span<KController* const> open, int batch, int rows) const {
  // Answers of at least this share of the longest one's tokens count as ending together.
  constexpr double kTogether = 0.9;
  int64_t longest = 0;
  for (const KController* const s : open) longest = std::max(longest, s->to_come_);
  if (longest <= 0 || !costs_) return 0;
  double together = 0, mean = 0, variance = 0;
  for (size_t i = 0; i < open.size(); ++i) {
    together += static_cast<double>(open[i]->to_come_) >= kTogether * static_cast<double>(longest);
    double reach = 1, accepted = 0, squares = 0;  // E[A], E[A²] of A accepted tokens; reach = P(A ≥ k)
    for (int k = 1; k <= Choice::of_thread().k[i]; ++k) {
      reach *= open[i]->expected_overlap(k - 1);
      accepted += reach;
      squares += (2 * k - 1) * reach;
    }
    mean += (1 + accepted) / static_cast<double>(open.size());
    variance += (squares - accepted * accepted) / static_cast<double>(open.size());
  }
  // The expected maximum of `together` standard normal numbers, within 0.03 for up to 64 numbers.
  const double largest = 0.56 * std::pow(std::log2(std::max(together, 1.0)), 0.83);
  const double fixed = std::min(1.0, costs_->target_seconds(1, 1) / costs_->target_seconds(batch, rows));
  return fixed * largest * std::sqrt(variance / (static_cast<double>(longest) * mean));
}

// Sorts the draft levels of all sequences by their worth (accepted tokens per row of the target pass). For any number
// of rows, the best choice is then the first levels in this order, whatever a row costs, because within a sequence
// worth never rises with the level. Tries all these choices for every depth, so the cost need not be linear in the
// rows.
void KController::share_depth(std::span<KController* const> open, int batch) {
  if (open.empty()) return;
  const KController& any = *open.front();
  const int deepest = any.options_.max_k;
  Choice& c = Choice::of_thread();
  double to_come = 0;
  for (const KController* const s : open)
    to_come += static_cast<double>(s->to_come_) / static_cast<double>(open.size());
  c.items.clear();
  for (size_t i = 0; i < open.size(); ++i) {
    // The batch ends with the sequence that has the most tokens to come, so tokens of long sequences have a higher
    // weight.
    double reach = to_come > 0 ? std::sqrt(static_cast<double>(open[i]->to_come_) / to_come) : 1,
           worth = std::numeric_limits<double>::infinity();
    for (int k = 1; k <= deepest; ++k) {
      const int rows = tree_nodes(any.options_.tree, k) - tree_nodes(any.options_.tree, k - 1);
      reach *= open[i]->expected_overlap(k - 1);
      worth = std::min(worth, reach / rows);
      c.items.push_back({reach, worth, k, rows, i});
    }
  }
  std::sort(c.items.begin(), c.items.end(), [](const Choice::Item& a, const Choice::Item& b) {
    return a.worth != b.worth ? a.worth > b.worth : a.level != b.level ? a.level < b.level : a.sequence < b.sequence;
  });
  const double draft = any.draft_cost(batch), plain = any.pass_cost(batch, 0);
  const bool drafts = std::any_of(open.begin(), open.end(), [](const KController* s) { return s->drafting_; });
  double rate = 1 + any.options_.least_gain * (drafts ? 0.5 : 1);
  size_t taken = 0;
  int depth = 0;
  const int apart = std::max(1, static_cast<int>(open.size()) / 4),
            most = tree_nodes(any.options_.tree, deepest) * static_cast<int>(open.size());
  c.seconds.clear();
  for (int rows = 0; rows < most + apart; rows += apart) c.seconds.push_back(any.pass_cost(batch, rows) / plain);
  const auto seconds = [&c, apart](int rows) {
    const double at = static_cast<double>(rows) / apart;
    const auto below = static_cast<size_t>(at);
    return below + 1 < c.seconds.size()
               ? std::lerp(c.seconds[below], c.seconds[below + 1], at - static_cast<double>(below))
               : c.seconds.back();
  };
  for (int d = 1; d <= deepest; ++d) {
    double tau = batch;
    int rows = 0;
    for (size_t i = 0; i < c.items.size(); ++i) {
      if (c.items[i].level > d) continue;
      tau += c.items[i].reach;
      rows += c.items[i].rows;
      const double reached = tau / batch / (d * draft + seconds(rows));
      if (reached <= rate * (1 + 1e-9)) continue;
      rate = reached;
      taken = i + 1;
      depth = d;
    }
  }
  int rows = batch, in_doubt = 0;
  for (size_t i = 0; i < taken; ++i) rows += c.items[i].level <= depth ? c.items[i].rows : 0;
  c.k.assign(open.size(), 0);
  for (size_t i = 0; i < taken; ++i)
    if (c.items[i].level <= depth) c.k[c.items[i].sequence] = c.items[i].level;
  if (taken > 0 && !any.sure(rate / (1 + any.unevenness(open, batch, rows)), batch, rows, drafts)) {
    in_doubt = std::min(depth, 2);
    c.k.assign(open.size(), 0);
  }
  for (size_t i = 0; i < open.size(); ++i) {
    KController& s = *open[i];
    s.rate_ = c.k[i] ? rate : 1;
    s.in_doubt_ = in_doubt;
    if (in_doubt) s.plain_owed_ = std::min(s.plain_owed_, s.probe_interval() / kSoonerInDoubt);
    const bool read =
        c.k[i] == 0 || static_cast<double>(s.to_come_) / batch * (1 - 1 / rate) > s.reading() || s.to_come_ == 0;
    s.settle(read ? c.k[i] : 0, read ? PlainReason::kDoesNotPay : PlainReason::kShortAnswer);
  }
}

void KController::probe() {
  plain_owed_ = std::max(plain_owed_, 0) + probe_interval();
  decision_.probe = true;
  decision_.k = in_doubt_ > 0 ? in_doubt_ : std::min(costs_ && costs_->is_stale(batch_, 2) ? 1 : 2, options_.max_k);
}

int KController::probe_interval() const {
  const int k = std::min(2, options_.max_k);
  // The extra time of a probe, in plain steps, if no drafted token is accepted (the worst case).
  const double more = k * draft_cost(batch_) + verify_cost(batch_, k) - 1 + batch_ * reading();
  return more > 0 ? std::max(options_.probe_interval, static_cast<int>(std::min(more / options_.probe_share, 1e6)))
                  : options_.probe_interval;
}

bool KController::may_stop() const {
  if (!adaptive()) return false;
  return options_.confidence_floor > 0 || (!decision_.probe && !exploring_ && measured());
}

rules::StopLimits KController::limits_after(int k, int batch) const {
  if (options_.confidence_floor > 0) return {.floor = options_.confidence_floor, .overlap = 0, .shared = 0, .own = 0};
  return {.floor = 0,
          .overlap = expected_overlap(k),
          .shared = rate_ * draft_cost(batch) * batch,
          .own = rate_ * std::max(0.0, verify_cost(batch, k + 1) - verify_cost(batch, k))};
}

rules::AcceptanceTable KController::acceptance_table() const {
  // Acceptance is learned per bin of the draft's confidence. In each bin the mean overlap counts as this many
  // observations, because a request has only a few dozen observations per bin, which are weak evidence against the
  // mean.
  constexpr double kPooledWeight = 16;
  const double mean = seen().value();
  rules::AcceptanceTable table;
  for (size_t bin = 0; bin < kBins; ++bin)
    table.bins[bin] = (bin_sum_[bin] + kPooledWeight * mean) / (bin_weight_[bin] + kPooledWeight);
  return table;
}

bool StopRule::stops(std::span<const double> confidences, int drafting) const {
  if (confidences.empty() || confidences.size() > limits.size()) return false;
  const auto confidence = [&](int i) { return confidences[static_cast<size_t>(i)]; };
  const auto count = static_cast<int>(confidences.size());
  return rules::stops(limits[confidences.size() - 1], acceptance, count, confidence, drafting);
}

void KController::stop_rule(int batch, int levels, StopRule& out) const {
  out.limits.clear();
  if (!may_stop()) return;
  out.acceptance = acceptance_table();
  for (int k = 1; k < levels; ++k) out.limits.push_back(limits_after(k, batch));
}

void KController::observe(int drafted, int accepted, const std::vector<double>& overlaps,
                          std::span<const double> confidences, std::span<const double> ratios) {
  const bool first_probe = decision_.probe && probed_ < 0;
  probed_ = -1;
  drafting_ = drafted > 0 && !decision_.probe;
  if (drafted == 0) return;
  const size_t reached = std::min({overlaps.size(), weight_.size()});
  // While K = 0, only probes observe the overlap. At the first probe after a run of plain steps, older observations are
  // outdated: all of them together get the weight of one new observation.
  const auto keep = [this, first_probe](double weight) {
    return first_probe ? std::min(options_.decay, 1 / std::max(weight, 1e-9)) : options_.decay;
  };
  for (size_t i = 0; i < weight_.size(); ++i) {
    const double kept = keep(weight_[i]);
    weight_[i] *= kept;
    sum_[i] *= kept;
  }
  double sum = 0;
  for (size_t i = 0; i < reached; ++i) {
    weight_[i] += 1;
    sum_[i] += overlaps[i];
    sum += overlaps[i];
  }
  if (!options_.seen) own_.add(overlaps);
  for (size_t i = 0; i < std::min(confidences.size(), ratios.size()); ++i) {
    const auto bin = static_cast<size_t>(rules::bin_of(confidences[i]));
    bin_weight_[bin] = bin_weight_[bin] * options_.decay + 1;
    bin_sum_[bin] = bin_sum_[bin] * options_.decay + ratios[i];
  }
  probed_ = decision_.probe && reached > 0 ? sum / static_cast<double>(reached) : -1;
}

}  // namespace specdec::decode
