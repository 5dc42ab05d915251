#include "engine/decode/tap_source.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <set>

namespace specdec::decode {

namespace {

constexpr int64_t kMostPositions = 16384;

// Keeps the positions [first, end) of `states`.
void cut(KeptStates& states, int64_t first, int64_t end) {
  first = std::clamp(first, states.first, std::max(states.first, states.end));
  end = std::clamp(end, first, std::max(first, states.end));
  // A copy, because a view would hold the memory of all rows.
  if (states.rows.defined())
    states.rows = end > first ? states.rows.narrow(0, first - states.first, end - first).clone() : at::Tensor();
  states.first = first;
  states.end = end;
}

}  // namespace

int64_t TapStore::add_reader(std::vector<int64_t> layers) {
  readers_.push_back({std::move(layers), {}});
  return static_cast<int64_t>(readers_.size()) - 1;
}

void TapStore::start(int64_t reader, SequenceId sequence, int64_t length) {
  readers_[static_cast<size_t>(reader)].kept.try_emplace(sequence, KeptStates{length, length, {}});
}

void TapStore::drop(int64_t reader, SequenceId sequence) { readers_[static_cast<size_t>(reader)].kept.erase(sequence); }

KeptStates TapStore::kept(int64_t reader, SequenceId sequence) const {
  const auto& kept = readers_[static_cast<size_t>(reader)].kept;
  const auto it = kept.find(sequence);
  return it == kept.end() ? KeptStates{} : it->second;
}

void TapStore::forget(int64_t reader, SequenceId sequence, int64_t before) {
  auto& kept = readers_[static_cast<size_t>(reader)].kept;
  const auto it = kept.find(sequence);
  if (it != kept.end() && before > it->second.first) cut(it->second, before, it->second.end);
}

model::HiddenObserver TapStore::observe(std::span<const Extension> extensions) {
  seen_.clear();
  std::set<int64_t> layers;
  for (const Reader& reader : readers_)
    if (std::any_of(extensions.begin(), extensions.end(),
                    [&](const Extension& e) { return reader.kept.contains(e.sequence); }))
      layers.insert(reader.layers.begin(), reader.layers.end());
  if (layers.empty()) return {};
  return [this, layers](int64_t layer, const at::Tensor& hidden) {
    if (layers.contains(layer)) seen_[layer] = hidden;
  };
}

void TapStore::keep_pass(std::span<const Extension> extensions, std::span<const int64_t> lengths) {
  if (seen_.empty()) return;
  for (Reader& reader : readers_) {
    int64_t row = 0;
    for (size_t i = 0; i < extensions.size(); ++i) {
      const auto count = static_cast<int64_t>(extensions[i].tokens.size());
      const auto it = reader.kept.find(extensions[i].sequence);
      if (it != reader.kept.end()) {
        std::vector<at::Tensor> taps;
        for (const int64_t layer : reader.layers) taps.push_back(seen_.at(layer).narrow(0, row, count));
        const at::Tensor rows = at::cat(taps, -1);
        KeptStates& states = it->second;
        if (states.end != lengths[i]) states = {lengths[i], lengths[i], {}};  // the positions between were never seen
        states.rows = states.rows.defined() ? at::cat({states.rows, rows}) : rows;
        states.end += count;
        // A draft that fell so far behind has failed, or its sequence was forked and has no draft.
        if (states.end - states.first > kMostPositions) states = {states.end, states.end, {}};
      }
      row += count;
    }
  }
  seen_.clear();
}

void TapStore::truncate(SequenceId sequence, int64_t length) {
  for (Reader& reader : readers_) {
    const auto it = reader.kept.find(sequence);
    if (it == reader.kept.end() || length >= it->second.end) continue;
    if (length < it->second.first)
      it->second = {length, length, {}};
    else
      cut(it->second, it->second.first, length);
  }
}

void TapStore::keep(SequenceId sequence, int64_t length, std::span<const int64_t> places) {
  for (Reader& reader : readers_) {
    const auto it = reader.kept.find(sequence);
    if (it == reader.kept.end()) continue;
    KeptStates& states = it->second;
    const auto end = length + static_cast<int64_t>(places.size());
    if (length < states.first || !states.rows.defined()) {
      states = {end, end, {}};
      continue;
    }
    std::vector<int64_t> rows;
    for (int64_t at = states.first; at < length; ++at) rows.push_back(at - states.first);
    for (const int64_t place : places) rows.push_back(place - states.first);
    states.rows = states.rows.index_select(0, at::tensor(rows, at::kLong).to(states.rows.device()));
    states.end = end;
  }
}

void TapStore::fork(SequenceId from, SequenceId to, int64_t length) {
  for (Reader& reader : readers_) {
    const auto it = reader.kept.find(from);
    if (it == reader.kept.end()) continue;
    KeptStates states = it->second;
    if (length < states.first)
      states = {length, length, {}};
    else
      cut(states, states.first, length);
    reader.kept.insert_or_assign(to, states);
  }
}

void TapStore::close(SequenceId sequence) {
  for (Reader& reader : readers_) reader.kept.erase(sequence);
}

}  // namespace specdec::decode
