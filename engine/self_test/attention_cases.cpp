#include <array>
#include <cmath>

#include "engine/self_test/kernel_cases.h"
#include "engine/self_test/paged_sequence.h"

namespace specdec::self_test {

namespace {

namespace twins = kernels::twins;
using kernels::kPagedSlots;

int32_t narrow(size_t n) { return static_cast<int32_t>(n); }

// The heads of a layer, as input of prepare_heads().
struct Heads {
  CudaDtype dtype;
  size_t heads, kv_heads, d, rotated;
  bool normed;
  size_t all() const { return heads + 2 * kv_heads; }
};

// The slots of the rows, which are in two blocks and not in order.
const std::vector<int32_t> kPlaces = {3, 64, 0, 127, 65};

// Returns the heads [begin, begin + count) of every row.
Values heads_of(const Heads& s, const Values& projected, size_t begin, size_t count) {
  Values out;
  for (size_t row = 0; row < kPlaces.size(); ++row)
    for (size_t i = 0; i < count * s.d; ++i) out.push_back(projected[(row * s.all() + begin) * s.d + i]);
  return out;
}

// Tolerance of each number: norm and rotation may each round differently, by one spacing of the head's largest number.
Values steps_of_heads(const Heads& s, const Values& expected) {
  Values out(expected.size());
  for (size_t head = 0; head < expected.size() / s.d; ++head) {
    double most = 0;
    for (size_t i = 0; i < s.d; ++i) most = std::max(most, std::fabs(expected[head * s.d + i]));
    for (size_t i = 0; i < s.d; ++i) out[head * s.d + i] = 2 * twins::spacing(s.dtype, most);
  }
  return out;
}

// The expected contents of the two blocks, with the tolerance of each number.
struct Blocks {
  Values expected[2], each[2];
};
Blocks blocks_of(const Heads& s, const Values& keys, const Values& values) {
  const size_t numbers = kPagedLayers * 2 * s.kv_heads * kPagedSlots * s.d;
  const Values steps = steps_of_heads(s, keys);
  Blocks out;
  for (size_t block = 0; block < 2; ++block)
    out.expected[block].assign(numbers, kUnwritten), out.each[block].assign(numbers, 0);
  for (size_t row = 0; row < kPlaces.size(); ++row)
    for (size_t side = 0; side < 2; ++side)
      for (size_t head = 0; head < s.kv_heads; ++head)
        for (size_t i = 0; i < s.d; ++i) {
          const auto slot = static_cast<size_t>(kPlaces[row]);
          const size_t at = (((kPagedLayer * 2 + side) * s.kv_heads + head) * kPagedSlots + slot % kPagedSlots) * s.d +
                            i,
                       from = (row * s.kv_heads + head) * s.d + i;
          out.expected[slot / kPagedSlots][at] = side == 0 ? keys[from] : values[from];
          if (side == 0) out.each[slot / kPagedSlots][at] = steps[from];
        }
  return out;
}

std::string test_prepare_heads(const TestDevice& device, const Heads& s) {
  const size_t rows = kPlaces.size(), block = kPagedLayers * 2 * s.kv_heads * kPagedSlots * s.d;
  const Values projected = random_values(s.dtype, rows * s.all() * s.d, 1),
               q_norm = s.normed ? random_values(s.dtype, s.d, 2) : Values{},
               k_norm = s.normed ? random_values(s.dtype, s.d, 3) : Values{};
  Values cosines, sines;
  for (size_t i = 0; i < rows * s.rotated / 2; ++i) {
    cosines.push_back(twins::rounded(CudaDtype::kFloat, std::cos(static_cast<double>(i))));
    sines.push_back(twins::rounded(CudaDtype::kFloat, std::sin(static_cast<double>(i))));
  }
  const DeviceValues in(device, s.dtype, projected), q_weight(device, s.dtype, q_norm),
      k_weight(device, s.dtype, k_norm), c(device, CudaDtype::kFloat, cosines), sine(device, CudaDtype::kFloat, sines),
      q(device, s.dtype, rows * s.heads * s.d), first(device, s.dtype, block), second(device, s.dtype, block);
  std::vector<kernels::PagedRow> places;
  // The sequence's block table begins at the second address.
  for (const int32_t slot : kPlaces) places.push_back({1, 1, slot});
  const DeviceArray<kernels::PagedRow> paged(device, places);
  const DeviceArray<uint64_t> blocks(device, std::vector<uint64_t>{0, reinterpret_cast<uint64_t>(first.data()),
                                                                   reinterpret_cast<uint64_t>(second.data())});
  kernels::PagedPass pass = {};
  pass.rows = paged.data(), pass.blocks = blocks.data(), pass.num_rows = narrow(rows);
  pass.heads = narrow(s.heads), pass.kv_heads = narrow(s.kv_heads), pass.d = narrow(s.d);
  kernels::PagedHeads heads = {};
  heads.layer = kPagedLayer, heads.rotated = narrow(s.rotated), heads.projected = in.data();
  heads.eps = kNormEps, heads.cos = c.floats(), heads.sin = sine.floats(), heads.q = q.data();
  if (s.normed) heads.q_norm = q_weight.data(), heads.k_norm = k_weight.data();
  finish(device, device.library.prepare_heads(s.dtype, device.index, &pass, &heads));

  const auto twin = [&](size_t begin, size_t count, const Values& weight) {
    return twins::prepare_heads(s.dtype, heads_of(s, projected, begin, count), weight, static_cast<double>(kNormEps),
                                cosines, sines, s.d, s.rotated);
  };
  const Values queries = twin(0, s.heads, q_norm);
  const std::string wrong = difference(s.dtype, q.read(), queries, {.share = 0.1, .each = steps_of_heads(s, queries)});
  if (!wrong.empty()) return "queries, " + wrong;
  const Blocks expected =
      blocks_of(s, twin(s.heads, s.kv_heads, k_norm), heads_of(s, projected, s.heads + s.kv_heads, s.kv_heads));
  for (const size_t side : {0, 1}) {
    const std::string in_block = difference(s.dtype, (side == 0 ? first : second).read(), expected.expected[side],
                                            {.share = 0.1, .each = expected.each[side]});
    if (!in_block.empty()) return "keys and values, " + in_block;
  }
  return {};
}

// A sequence in device memory, with its rows in a pass of paged_attention().
struct PagedText {
  size_t length;
  Mask mask;
};

std::string test_attention(const TestDevice& device, const PagedShape& shape, const std::vector<PagedText>& texts) {
  std::vector<PagedSequence> sequences;
  for (const PagedText& text : texts)
    sequences.emplace_back(shape, text.length + text.mask.size(), 10 * sequences.size() + text.length);
  std::vector<PagedPart> parts;
  for (size_t i = 0; i < texts.size(); ++i) {
    PagedPart& part = parts.emplace_back(PagedPart{&sequences[i], {}, texts[i].length, texts[i].mask});
    for (const Values& block : sequences[i].blocks(texts[i].length))
      part.blocks.push_back(DeviceValues(device, shape.dtype, block).data());
  }
  const PagedInputs inputs = paged_inputs(shape, parts);
  const kernels::PagedRows& list = inputs.rows;
  const DeviceArray<kernels::PagedRow> rows(device, list.rows());
  const DeviceArray<kernels::PagedTile> tiles(device, list.tiles());
  const DeviceArray<uint64_t> blocks(device, list.blocks());
  const DeviceArray<float> work(
      device, static_cast<size_t>(list.num_parts()) * shape.kv_heads * kernels::kPagedQueries * (shape.d + 2));
  const DeviceValues q(device, shape.dtype, inputs.q), k(device, shape.dtype, inputs.k),
      v(device, shape.dtype, inputs.v), out(device, shape.dtype, inputs.q.size());
  kernels::PagedPass pass = {};
  pass.rows = rows.data(), pass.tiles = tiles.data(), pass.blocks = blocks.data(), pass.parts = work.data();
  pass.num_rows = narrow(list.rows().size()), pass.num_tiles = narrow(list.tiles().size());
  pass.num_splits = list.num_splits();
  pass.heads = narrow(shape.heads), pass.kv_heads = narrow(shape.kv_heads), pass.d = narrow(shape.d);
  kernels::PagedLayer layer = {};
  layer.layer = kPagedLayer, layer.scale = static_cast<float>(shape.scale);
  layer.soft_cap = static_cast<float>(shape.soft_cap), layer.window = shape.window;
  layer.q = q.data(), layer.k = k.data(), layer.v = v.data(), layer.out = out.data();
  finish(device, device.library.paged_attention(shape.dtype, device.index, &pass, &layer));
  work.read();  // throws if the kernel wrote outside the array
  // The tolerance is twice the rounding error of otherwise exact arithmetic, because the device's exponential is not
  // exact.
  return difference(shape.dtype, out.read(), expected_attention(parts),
                    {.steps = 0, .share = 1, .absolute = 2 * attention_error(shape.dtype)});
}

void add(Cases& cases, const PagedShape& shape, const std::vector<PagedText>& texts, const std::string& name) {
  cases.push_back({"paged_attention",
                   name_of(shape.dtype) + " " + std::to_string(shape.heads) + "/" + std::to_string(shape.kv_heads) +
                       " heads of " + std::to_string(shape.d) + ", " + name,
                   [=](const TestDevice& on) { return test_attention(on, shape, texts); }});
}

void add(Cases& cases, const Heads& s) {
  cases.push_back({"prepare_heads",
                   name_of(s.dtype) + " " + std::to_string(s.heads) + "/" + std::to_string(s.kv_heads) + " heads of " +
                       std::to_string(s.d) + ", " + std::to_string(s.rotated) + " rotated" +
                       (s.normed ? ", normed" : ""),
                   [=](const TestDevice& on) { return test_prepare_heads(on, s); }});
}

// Tests moves of tokens between the slots of two blocks, including moves into slots from which other tokens are read.
std::string test_move_slots(const TestDevice& device, size_t planes, size_t d) {
  const size_t numbers = planes * kPagedSlots * d;
  constexpr int32_t kMoves[][4] = {{0, 61, 0, 60}, {0, 63, 0, 61}, {1, 2, 0, 62}, {1, 3, 0, 63}, {1, 9, 1, 2}};
  const Values before = random_values(CudaDtype::kHalf, 2 * numbers, 7);
  const DeviceValues memory(device, CudaDtype::kHalf, before);
  const Values found_before = memory.read();
  Values expected = found_before;
  kernels::SlotMoves moves = {};
  moves.planes = narrow(planes), moves.d = narrow(d);
  const auto block = [&](int32_t number) {
    return reinterpret_cast<uint64_t>(static_cast<uint16_t*>(memory.data()) + static_cast<size_t>(number) * numbers);
  };
  for (const auto& [from_block, from, to_block, to] : kMoves) {
    const auto at = static_cast<size_t>(moves.count++);
    moves.from[at] = from, moves.to[at] = to;
    moves.from_block[at] = block(from_block), moves.to_block[at] = block(to_block);
    for (size_t plane = 0; plane < planes; ++plane)
      for (size_t i = 0; i < d; ++i) {
        const auto place = [&](int32_t number, int32_t slot) {
          return static_cast<size_t>(number) * numbers + (plane * kPagedSlots + static_cast<size_t>(slot)) * d + i;
        };
        expected[place(to_block, to)] = expected[place(from_block, from)];
      }
  }
  finish(device, device.library.move_slots(device.index, &moves));
  return difference(CudaDtype::kHalf, memory.read(), expected, {.steps = 0});
}

std::string after(size_t rows, size_t length) { return std::to_string(rows) + " rows after " + std::to_string(length); }

}  // namespace

void add_attention_cases(Cases& cases, Extent extent) {
  for (const auto& [planes, d] : std::vector<std::array<size_t, 2>>{{4, 24}, {32, 64}, {6, 129}})
    cases.push_back({"move_slots", shape_text({planes, d}),
                     [planes = planes, d = d](const TestDevice& on) { return test_move_slots(on, planes, d); }});
  const Mask nodes = tree_mask({-1, -1, 0, 0, 1, 2, 2, 5, 3, -1});
  for (const CudaDtype dtype : kHalves) {
    std::vector<Heads> heads = {{dtype, 4, 2, 64, 64, true}, {dtype, 2, 2, 80, 32, false}};
    if (extent != Extent::kFew)
      heads.insert(heads.end(), {{dtype, 3, 1, 40, 40, true},
                                 {dtype, 1, 1, 128, 0, true},
                                 {dtype, 32, 8, 128, 128, false},
                                 {dtype, 5, 5, 256, 256, true}});
    for (const Heads& s : heads) add(cases, s);

    add(cases, {dtype, 4, 2, 64}, {{63, causal_mask(5)}}, after(5, 63));
    add(cases, {dtype, 2, 1, 32, 0.4, 2.0, 40}, {{60, nodes}}, "a tree in a window of 40 with a cap");
    if (extent == Extent::kFew) continue;
    for (const auto& [h, g, d, length] : std::vector<std::array<size_t, 4>>{
             {3, 1, 128, 15}, {20, 1, 8, 64}, {2, 1, 256, 62}, {2, 2, 80, 0}, {32, 8, 128, 700}})
      add(cases, {dtype, h, g, d}, {{length, causal_mask(5)}}, after(5, length));
    add(cases, {dtype, 4, 1, 64}, {{4093, causal_mask(6)}}, after(6, 4093));
    add(cases, {dtype, 4, 2, 64},
        {{20, causal_mask(20)}, {0, causal_mask(1)}, {127, causal_mask(9)}, {0, causal_mask(64)}}, "4 sequences");
    for (const int window : {1, 64, 70}) add(cases, {dtype, 2, 1, 32, 0.4, 0, window}, {{100, nodes}}, "a tree");
    if (extent != Extent::kMany) continue;
    for (const size_t length : {1, 127, 128, 129, 1000, 9000})
      for (const size_t rows : {1, 17, 64})
        add(cases, {dtype, 8, 2, 128, 0.1}, {{length, causal_mask(rows)}}, after(rows, length));
  }
}

}  // namespace specdec::self_test
