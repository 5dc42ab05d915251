// Measures the speed of the kernels: products of matrices, as fractions of the bandwidth of a memory copy, and the
// sampling of vocabulary rows. The only assertion is that the figures are numbers.
#include "tests/gpu/speed.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/gpu/report.h"

namespace specdec::gpu {
namespace {

// Returns how many matrices of this size to multiply in turn, so that no matrix is still in the L2 cache (50 to 60 MB)
// when it is read again. A real decoder does not find its matrices in the cache, either.
int64_t in_rotation(int64_t bytes) {
  constexpr int64_t kFarMoreThanCached = int64_t{512} << 20;
  return machine().real ? std::max<int64_t>(4, kFarMoreThanCached / bytes) : 4;
}

// The number of timed calls of a product. SPECDEC_GPU_FEW reduces it to one, because profilers slow down every call.
int calls_of_a_product() { return machine().real && !std::getenv("SPECDEC_GPU_FEW") ? 48 : 1; }

void measure_products(const std::string& kind, const std::vector<at::Tensor>& weights, kernels::RowsProduct call) {
  for (const int64_t rows : {1, 4, 16, 64}) {
    const at::Tensor x = at::randn({rows, call.k}, bf16()), out = at::empty({rows, call.n}, bf16());
    call.rows = rows;
    call.x = x.const_data_ptr(), call.out = out.mutable_data_ptr();
    const double seconds = seconds_of(calls_of_a_product(), [&](int64_t i) {
      call.weight = weights[static_cast<size_t>(i) % weights.size()].const_data_ptr();
      ASSERT_EQ(machine().library->rows_product(kernels::CudaDtype::kBFloat16, machine().index(), &call), 0);
    });
    const double bytes = static_cast<double>(weights[0].nbytes()) + 2.0 * static_cast<double>(rows * (call.n + call.k));
    EXPECT_GT(seconds, 0);
    record("products", std::to_string(rows) + " rows" + kind,
           {{"n", call.n},
            {"k", call.k},
            {"matrices_in_rotation", weights.size()},
            {"seconds", seconds},
            {"share_of_copies", bytes / seconds / copy_bytes_per_second()}});
  }
}

kernels::RowsProduct large_product() {
  kernels::RowsProduct call = {};
  call.n = machine().real ? 14336 : 40, call.k = machine().real ? 4096 : 64, call.stride = call.n;
  return call;
}

TEST(Speed, Products) {
  const kernels::RowsProduct call = large_product();
  std::vector<at::Tensor> weights;
  for (int64_t i = in_rotation(2 * call.n * call.k); i > 0; --i)
    weights.push_back(at::randn({call.n, call.k}, bf16()).mul_(0.02));
  measure_products("", weights, call);
}

// Times products of many rows with wide_product (cuBLASLt) and with rows_product, which --exact always uses.
TEST(Speed, WideProducts) {
  kernels::RowsProduct call = large_product();
  std::vector<at::Tensor> weights;
  for (int64_t i = in_rotation(2 * call.n * call.k); i > 0; --i)
    weights.push_back(at::randn({call.n, call.k}, bf16()).mul_(0.02));
  const at::Tensor workspace = at::empty({kernels::kWideProductBytes}, bf16().dtype(at::kByte));
  for (const int64_t rows : {80, 128, 256}) {
    const at::Tensor x = at::randn({rows, call.k}, bf16()), out = at::empty({rows, call.n}, bf16());
    call.rows = rows, call.x = x.const_data_ptr(), call.out = out.mutable_data_ptr();
    const auto seconds = [&](bool wide) {
      return seconds_of(calls_of_a_product(), [&](int64_t i) {
        call.weight = weights[static_cast<size_t>(i) % weights.size()].const_data_ptr();
        constexpr kernels::CudaDtype kType = kernels::CudaDtype::kBFloat16;
        ASSERT_EQ(wide ? machine().library->wide_product(kType, machine().index(), &call, workspace.mutable_data_ptr())
                       : machine().library->rows_product(kType, machine().index(), &call),
                  0);
      });
    };
    const double wide = seconds(true), exact = seconds(false);
    EXPECT_GT(wide, 0);
    record("wide products", std::to_string(rows) + " rows",
           {{"n", call.n}, {"k", call.k}, {"seconds", wide}, {"seconds_exact", exact}});
  }
}

TEST(Speed, ProductsOfInt8) {
  kernels::RowsProduct call = large_product();
  call.packing = kernels::Packing::kInt8;
  std::vector<at::Tensor> weights;
  for (int64_t i = in_rotation(call.n * call.k); i > 0; --i)
    weights.push_back(kernels::quantise_int8(at::randn({call.n, call.k}, bf16()).mul_(0.02)));
  measure_products(", int8", weights, call);
}

// Products with weights quantised in groups of 128. The weights and scales are random bytes, because the kernels take
// equally long for all values.
TEST(Speed, ProductsOfCodes) {
  constexpr std::pair<const char*, kernels::Packing> kPackings[] = {
      {"4 bits", kernels::Packing::kCodes4}, {"8 bits", kernels::Packing::kCodes8}, {"E4M3", kernels::Packing::kE4m3}};
  constexpr int64_t kGroup = 128;
  for (const auto& [name, packing] : kPackings) {
    kernels::RowsProduct call = large_product();
    call.packing = packing, call.group = std::min(kGroup, call.k);
    const int64_t row_bytes = kernels::packed_row_bytes(packing, call.k, kGroup);
    std::vector<at::Tensor> weights;
    for (int64_t i = in_rotation(call.n * row_bytes); i > 0; --i)
      weights.push_back(at::randint(0, 256, {call.n, row_bytes}, bf16().dtype(at::kByte)));
    measure_products(std::string(", ") + name, weights, call);
  }
}

// Times the sampling of vocabulary rows under common options; decoding samples after every pass. The kernel turns a row
// of logits into probabilities in place, so each call has its own rows, which are filled again before each repetition
// of the measurement.
TEST(Speed, SamplingOfRows) {
  struct Options {
    const char* name;
    double temperature, top_p;
    int32_t top_k;
  };
  constexpr Options kOptions[] = {{"greedy", 0, 1, 0},
                                  {"T 1", 1, 1, 0},
                                  {"T 1, top-p .95", 1, .95, 0},
                                  {"T 1, top-k 40", 1, 1, 40},
                                  {"T 1, top-k 40, top-p .95", 1, .95, 40}};
  const int64_t vocab = machine().real ? 128256 : 200;
  for (const int64_t count : {1, 64}) {
    const int calls = machine().real ? (count == 1 ? 40 : 4) : 1;
    // Draws logits like those of trained models: a spread of a few units, rounded to bf16.
    const at::Tensor fresh = at::randn({calls * count, vocab}, bf16()).mul_(2.5).to(at::kFloat),
                     logits = at::empty_like(fresh),
                     tokens = at::empty({count}, at::TensorOptions(machine().device).dtype(at::kInt));
    for (const Options& options : kOptions) {
      kernels::SampleRow row = {};
      row.temperature = options.temperature, row.top_p = options.top_p, row.top_k = options.top_k;
      const std::vector<kernels::SampleRow> same(static_cast<size_t>(count), row);
      const at::Tensor rows = at::from_blob(const_cast<kernels::SampleRow*>(same.data()),
                                            {static_cast<int64_t>(same.size() * sizeof row)}, at::kByte)
                                  .to(machine().device);
      const auto sample = [&](int64_t i) {
        const kernels::SamplePass pass = {.rows = static_cast<const kernels::SampleRow*>(rows.const_data_ptr()),
                                          .logits = logits.mutable_data_ptr<float>() + i % calls * count * vocab,
                                          .tokens = tokens.mutable_data_ptr<int32_t>(),
                                          .choices = nullptr,
                                          .num_rows = static_cast<int32_t>(count),
                                          .vocab = static_cast<int32_t>(vocab)};
        ASSERT_EQ(machine().library->sample(machine().index(), &pass), 0);
      };
      const double seconds = seconds_of(calls, sample, [&] { logits.copy_(fresh); });
      EXPECT_GT(seconds, 0);
      record("sampling", std::to_string(count) + (count == 1 ? " row, " : " rows, ") + options.name,
             {{"vocab", vocab}, {"seconds", seconds}});
    }
  }
}

}  // namespace
}  // namespace specdec::gpu
