// Implements causal attention of whole sequences on the CPU, with gradients, for training and evaluation. ATen's flash
// attention calls a general matrix product for every block, which is mostly overhead for heads of 8 to 64 values.
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <vector>

#include "engine/kernels/cpu/cpu.h"
#include "engine/kernels/team.h"
#include "engine/kernels/variants.h"

namespace specdec::kernels::cpu {

namespace {

at::Tensor unit_inner(const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); }

// Calls f(call, sequence, kv head) for every sequence and kv head. Each call runs on one thread, so that sums never
// depend on the number of threads. Each thread has its own workspace.
template <class F>
void for_each_head(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& out,
                   const at::Tensor& rows, float scale, const F& f) {
  const int64_t batch = q.size(0), length = q.size(1), heads = q.size(2), d = q.size(3), groups = k.size(1),
                share = heads / groups;
  const int64_t units = batch * groups, threads = std::min<int64_t>(at::get_num_threads(), units),
                workspace = sequence_workspace(length, d);
  const at::Tensor buffer = at::empty({threads, workspace}, q.options());
  run_team(static_cast<int>(threads), [&](const Member& member) {
    for (int64_t unit = member.id; unit < units; unit += member.size) {
      const int64_t b = unit / groups, g = unit % groups, query = (b * length * heads + g * share) * d,
                    key = b * k.stride(0) + g * k.stride(1);
      f(SequenceAttentionCall{q.const_data_ptr<float>() + query, heads * d, share, d, length,
                              k.const_data_ptr<float>() + key, v.const_data_ptr<float>() + key, k.stride(2), scale,
                              out.data_ptr<float>() + query,
                              reinterpret_cast<SoftmaxRow*>(rows.data_ptr<float>()) + unit * share * length,
                              buffer.data_ptr<float>() + member.id * workspace},
        b, g);
    }
  });
}

struct Outputs {
  at::Tensor out, rows;  // [B, S, H, D]; [B, H, S, 2]
};

Outputs run(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, float scale) {
  Outputs o{at::empty_like(q), at::empty({q.size(0), q.size(2), q.size(1), 2}, q.options())};
  for_each_head(q, k, v, o.out, o.rows, scale,
                [](const SequenceAttentionCall& call, int64_t, int64_t) { kernels<float>().sequence_attention(call); });
  return o;
}

struct SequenceAttention : torch::autograd::Function<SequenceAttention> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, double scale) {
    const Outputs o = run(q, k, v, static_cast<float>(scale));
    context->saved_data["scale"] = scale;
    context->save_for_backward({q, k, v, o.out, o.rows});
    return o.out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], dout = upstream[0].contiguous(), dq = at::empty_like(q);
    // These gradients are stored as [B, L, G, D] in memory, the order in which the gradients of the projections read
    // them.
    const auto like_keys = [&] {
      return at::empty({k.size(0), k.size(2), k.size(1), k.size(3)}, k.options()).transpose(1, 2);
    };
    const at::Tensor dk = like_keys(), dv = like_keys();
    const auto scale = static_cast<float>(context->saved_data["scale"].toDouble());
    for_each_head(q, k, saved[2], saved[3], saved[4], scale,
                  [&](const SequenceAttentionCall& call, int64_t b, int64_t g) {
                    const int64_t query = call.q - q.const_data_ptr<float>(), key = b * dk.stride(0) + g * dk.stride(1);
                    kernels<float>().sequence_attention_grad({call, dout.const_data_ptr<float>() + query,
                                                              dq.data_ptr<float>() + query, dk.data_ptr<float>() + key,
                                                              dv.data_ptr<float>() + key, dk.stride(2)});
                  });
    return {dq, dk, dv, at::Tensor()};
  }
};

}  // namespace

at::Tensor sequence_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  const double factor = scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  const at::Tensor queries = q.contiguous();
  at::Tensor keys = unit_inner(k), values = unit_inner(v);
  if (keys.strides() != values.strides()) keys = keys.contiguous(), values = values.contiguous();
  if (at::GradMode::is_enabled() && (q.requires_grad() || k.requires_grad() || v.requires_grad()))
    return SequenceAttention::apply(queries, keys, values, factor);
  return run(queries, keys, values, static_cast<float>(factor)).out;
}

}  // namespace specdec::kernels::cpu
