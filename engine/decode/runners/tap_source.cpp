#include "engine/decode/runners/tap_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

namespace specdec::decode {

namespace {

constexpr int64_t kMostPositions = 16384;

// Keeps only the positions [first, end) of `states`.
void cut(KeptStates& states, int64_t first, int64_t end) {
  first = std::clamp(first, states.first, std::max(states.first, states.end));
  end = std::clamp(end, first, std::max(first, states.end));
  // Copies the rows, because a view would keep the memory of all rows alive.
  if (states.rows.defined())
    states.rows = end > first ? states.rows.narrow(0, first - states.first, end - first).clone() : at::Tensor();
  states.first = first;
  states.end = end;
}

}  // namespace

KeptStates kept_states(const TapReader& reader, SequenceId sequence) {
  const auto it = reader.kept.find(sequence);
  return it == reader.kept.end() ? KeptStates{} : it->second;
}

void forget_states(TapReader& reader, SequenceId sequence, int64_t before) {
  const auto it = reader.kept.find(sequence);
  if (it != reader.kept.end() && before > it->second.first) cut(it->second, before, it->second.end);
}

std::shared_ptr<TapReader> TapStore::add_reader(std::vector<int64_t> layers) {
  auto reader = std::make_shared<TapReader>(TapReader{std::move(layers), {}});
  const std::lock_guard lock(mutex_);
  std::erase_if(readers_, [](const std::weak_ptr<TapReader>& other) { return other.expired(); });
  readers_.push_back(reader);
  return reader;
}

template <class F>
void TapStore::for_each_reader(const F& f) {
  const std::lock_guard lock(mutex_);
  for (const std::weak_ptr<TapReader>& weak : readers_)
    if (const std::shared_ptr<TapReader> reader = weak.lock()) f(*reader);
}

Observation TapStore::observe(std::span<const Extension> extensions) {
  seen_.clear();
  std::set<int64_t> layers;
  for_each_reader([&](const TapReader& reader) {
    if (std::any_of(extensions.begin(), extensions.end(),
                    [&](const Extension& e) { return reader.kept.contains(e.sequence); }))
      layers.insert(reader.layers.begin(), reader.layers.end());
  });
  if (layers.empty()) return {};
  return {[this, layers](int64_t layer, const at::Tensor& hidden) {
            if (layers.contains(layer)) seen_[layer] = hidden;
          },
          {layers.begin(), layers.end()}};
}

void TapStore::keep_pass(std::span<const Extension> extensions, std::span<const int64_t> lengths) {
  if (seen_.empty()) return;
  for_each_reader([&](TapReader& reader) {
    int64_t row = 0;
    for (size_t i = 0; i < extensions.size(); ++i) {
      const auto count = static_cast<int64_t>(extensions[i].tokens.size());
      const auto it = reader.kept.find(extensions[i].sequence);
      if (it != reader.kept.end()) {
        std::vector<at::Tensor> taps;
        for (const int64_t layer : reader.layers) taps.push_back(seen_.at(layer).narrow(0, row, count));
        const at::Tensor rows = at::cat(taps, -1);
        KeptStates& states = it->second;
        // If the target ran tokens without being observed, the stored states have a gap and are dropped.
        if (states.end != lengths[i]) states = {lengths[i], lengths[i], {}};
        states.rows = states.rows.defined() ? at::cat({states.rows, rows}) : rows;
        states.end += count;
        // If this many states wait for the draft, the draft has failed, or the sequence was forked and has no draft.
        if (states.end - states.first > kMostPositions) states = {states.end, states.end, {}};
      }
      row += count;
    }
  });
  seen_.clear();
}

void TapStore::truncate(SequenceId sequence, int64_t length) {
  for_each_reader([&](TapReader& reader) {
    const auto it = reader.kept.find(sequence);
    if (it == reader.kept.end() || length >= it->second.end) return;
    if (length < it->second.first)
      it->second = {length, length, {}};
    else
      cut(it->second, it->second.first, length);
  });
}

void TapStore::keep(SequenceId sequence, int64_t length, std::span<const int64_t> places) {
  for_each_reader([&](TapReader& reader) {
    const auto it = reader.kept.find(sequence);
    if (it == reader.kept.end()) return;
    KeptStates& states = it->second;
    const auto end = length + static_cast<int64_t>(places.size());
    if (length < states.first || !states.rows.defined()) {
      states = {end, end, {}};
      return;
    }
    std::vector<int64_t> rows;
    for (int64_t at = states.first; at < length; ++at) rows.push_back(at - states.first);
    for (const int64_t place : places) rows.push_back(place - states.first);
    states.rows = states.rows.index_select(0, at::tensor(rows, at::kLong).to(states.rows.device()));
    states.end = end;
  });
}

void TapStore::fork(SequenceId from, SequenceId to, int64_t length) {
  for_each_reader([&](TapReader& reader) {
    const auto it = reader.kept.find(from);
    if (it == reader.kept.end()) return;
    KeptStates states = it->second;
    if (length < states.first)
      states = {length, length, {}};
    else
      cut(states, states.first, length);
    reader.kept.insert_or_assign(to, states);
  });
}

void TapStore::close(SequenceId sequence) {
  for_each_reader([&](TapReader& reader) { reader.kept.erase(sequence); });
}

}  // namespace specdec::decode
