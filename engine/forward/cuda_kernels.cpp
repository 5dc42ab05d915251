#include "engine/forward/cuda_kernels.h"

#include <string>

#include "engine/kernels/cuda_errors.h"
#include "engine/kernels/quantised_matrix.h"

namespace specdec::model {

namespace {

using kernels::CudaDtype;

// Returns whether `next` directly follows `first` in memory, so that a kernel can read both as one matrix.
bool adjoin(const at::Tensor& first, const at::Tensor& next) {
  return first.is_contiguous() && next.is_contiguous() && first.scalar_type() == next.scalar_type() &&
         first.sizes().slice(1) == next.sizes().slice(1) &&
         static_cast<const char*>(data(first)) + first.nbytes() == data(next);
}

}  // namespace

CudaKernels::CudaKernels(const kernels::CudaLibrary& library, const at::Tensor& like, bool exact)
    : library_(library),
      dtype_(like.scalar_type() == at::kHalf ? CudaDtype::kHalf : CudaDtype::kBFloat16),
      device_(like.is_cpu() ? 0 : like.get_device()),
      exact_(exact),
      options_(like.options()) {}

void CudaKernels::check(int32_t code, const char* what) const {
  if (code != 0)
    kernels::throw_cuda_error(code, std::string(what) + " could not be launched", library_.error_text(code));
}

void CudaKernels::multiply(const Product& p) const {
  const auto size = static_cast<int64_t>(p.out.element_size());
  const kernels::RowsProduct call = {
      .rows = p.x.size(0),
      .n = p.n != 0 ? p.n : p.weight.size(0),
      .k = p.x.size(1),
      .x = data(p.x),
      .weight = data(p.weight),
      .bias = data(p.bias),
      .up = p.up ? data(*p.up) : nullptr,
      .up_bias = p.up_bias ? data(*p.up_bias) : nullptr,
      .residual = p.residual ? data(*p.residual) : nullptr,
      .out = static_cast<char*>(p.out.mutable_data_ptr()) + p.out_column * size,
      .stride = p.out.size(1),
      .packing = kernels::packing_of(p.weight),
      .group = kernels::group_size_of(p.weight),
      .order = p.order && kernels::is_group_quantised(p.weight) ? static_cast<const int32_t*>(data(*p.order)) : nullptr,
      .live = p.live,
  };
  if (!exact_ && call.rows > kernels::kMostNarrowRows && multiply_wide(p, call)) return;
  check(library_.rows_product(dtype_, device_, &call), "a product");
}

int64_t CudaKernels::wide_bytes(int64_t intermediate_size, at::ScalarType dtype) {
  return kernels::kWideProductBytes +
         kernels::kMaxProductRows * intermediate_size * static_cast<int64_t>(c10::elementSize(dtype));
}

// Returns false, with nothing done, if the library does not support the product.
bool CudaKernels::launch_wide(const kernels::RowsProduct& call) const {
  if (!workspace_.defined()) workspace_ = at::empty({kernels::kWideProductBytes}, options_.dtype(at::kByte));
  const int32_t code = library_.wide_product(dtype_, device_, &call, workspace_.mutable_data_ptr());
  if (code == kernels::kNotSupported) return false;
  check(code, "a wide product");
  return true;
}

// Computes a product with CudaLibrary::wide_product. Returns false if the library does not support the product; the
// contents of `out` are then undefined.
bool CudaKernels::multiply_wide(const Product& p, kernels::RowsProduct call) const {
  if (call.packing != kernels::Packing::kPlain || call.rows > kernels::kMaxProductRows) return false;
  if (!p.up) return launch_wide(call);
  if (call.stride != call.n || call.residual) return false;  // silu_mul() takes matrices without gaps
  if (!second_.defined() || second_.numel() < call.rows * call.n)
    second_ = at::empty({kernels::kMaxProductRows * call.n}, p.out.options());
  call.up = call.up_bias = nullptr;
  kernels::RowsProduct second = call;
  second.weight = data(*p.up), second.bias = p.up_bias ? data(*p.up_bias) : nullptr;
  second.out = second_.mutable_data_ptr();
  if (!launch_wide(call) || !launch_wide(second)) return false;
  check(library_.silu_mul(dtype_, device_, call.out, second.out, call.rows * call.n, call.out), "silu_mul");
  return true;
}

void CudaKernels::project(const at::Tensor& x, const Projection& w, const at::Tensor& out) const {
  constexpr int64_t kBlock = 32;  // outputs per block of quantised weights (kernels/cpu/cpu.h, quantised_matrix.h)
  const bool biased = w.q_bias.defined(), quantised = kernels::packing_of(w.q) != kernels::Packing::kPlain;
  const bool one = adjoin(w.q, w.k) && adjoin(w.k, w.v) &&
                   (!biased || (adjoin(w.q_bias, w.k_bias) && adjoin(w.k_bias, w.v_bias))) &&
                   (!quantised || (w.q.size(0) % kBlock == 0 && w.k.size(0) % kBlock == 0));
  const auto write = [&](const at::Tensor& weight, const at::Tensor& bias, int64_t n, int64_t at) {
    multiply({.x = x,
              .weight = weight,
              .bias = bias,
              .out = out,
              .order = &w.order,
              .n = n,
              .out_column = at,
              .live = w.live});
  };
  if (one) return write(w.q, w.q_bias, out.size(1), 0);
  const int64_t k_at = w.q.size(0), v_at = k_at + w.k.size(0);
  write(w.q, w.q_bias, w.q.size(0), 0);
  write(w.k, w.k_bias, w.k.size(0), k_at);
  write(w.v, w.v_bias, w.v.size(0), v_at);
}

void CudaKernels::norm(const at::Tensor& x, const at::Tensor& weight, double eps, const at::Tensor& out) const {
  check(library_.rms_norm(dtype_, device_, data(x), data(weight), static_cast<float>(eps), x.size(0), x.size(1),
                          out.mutable_data_ptr()),
        "rms_norm");
}

void CudaKernels::gather(const at::Tensor& table, const at::Tensor& ids, const at::Tensor& out) const {
  check(library_.gather_rows(dtype_, device_, data(table), ids.const_data_ptr<int32_t>(), ids.size(0), table.size(1),
                             out.mutable_data_ptr()),
        "gather_rows");
}

void CudaKernels::copy(const at::Tensor& from, const at::Tensor& to) const {
  check(library_.copy(device_, to.mutable_data_ptr(), data(from), static_cast<int64_t>(from.nbytes())), "a copy");
}

void CudaKernels::prepare(const kernels::PagedPass& pass, const kernels::PagedHeads& heads) const {
  check(library_.prepare_heads(dtype_, device_, &pass, &heads), "prepare_heads");
}

void CudaKernels::attend(const kernels::PagedPass& pass, const kernels::PagedLayer& layer) const {
  check(library_.paged_attention(dtype_, device_, &pass, &layer), "attention");
}

}  // namespace specdec::model
