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

// The gradients of sequence_attention() with respect to its inputs.
struct CausalGradients {
  at::Tensor q, k, v;
};
CausalGradients causal_gradients(const torch::autograd::variable_list& saved, const at::Tensor& dout, float scale) {
  const at::Tensor &q = saved[0], &k = saved[1], dq = at::empty_like(q);
  // The gradients of k and v are stored as [B, L, G, D] in memory, because the backward pass of the projections reads
  // them in this order.
  const auto like_keys = [&] {
    return at::empty({k.size(0), k.size(2), k.size(1), k.size(3)}, k.options()).transpose(1, 2);
  };
  const at::Tensor dk = like_keys(), dv = like_keys();
  for_each_head(q, k, saved[2], saved[3], saved[4], scale,
                [&](const SequenceAttentionCall& call, int64_t b, int64_t g) {
                  const int64_t query = call.q - q.const_data_ptr<float>(), key = b * dk.stride(0) + g * dk.stride(1);
                  kernels<float>().sequence_attention_grad({call, dout.const_data_ptr<float>() + query,
                                                            dq.data_ptr<float>() + query, dk.data_ptr<float>() + key,
                                                            dv.data_ptr<float>() + key, dk.stride(2)});
                });
  return {dq, dk, dv};
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
    const auto scale = static_cast<float>(context->saved_data["scale"].toDouble());
    const CausalGradients d = causal_gradients(context->get_saved_variables(), upstream[0].contiguous(), scale);
    return {d.q, d.k, d.v, at::Tensor()};
  }
};

// These functions prepare tensors for broadcasting over the query heads of a kv head. by_group() views [B, S, H, ...]
// as [B, S, G, H / G, ...]. over_group() views the `own` keys of diagonal_attention() [N, B, S, G, D] as [N, B, S, G,
// 1, D].
at::Tensor by_group(const at::Tensor& x, int64_t groups) { return x.unflatten(2, {groups, x.size(2) / groups}); }
at::Tensor over_group(const at::Tensor& own) { return own.unsqueeze(4); }

// Extends the softmax over the causal keys to the `own` keys of diagonal_attention() (ops.h), whose scores are
// [N, B, S, G, H / G]. Replaces o.out and o.rows by those of the extended softmax. From the new o.out and o.rows,
// causal_gradients() computes the exact gradients of the causal part.
void merge_own(Outputs& o, const at::Tensor& scores, const at::Tensor& own_v, double scale) {
  const int64_t groups = own_v.size(3);
  const at::Tensor largest = by_group(o.rows.select(-1, 0).transpose(1, 2), groups),
                   sum = by_group(o.rows.select(-1, 1).transpose(1, 2), groups).reciprocal();
  const at::Tensor most = at::maximum(largest, scores.amax(0)), before = sum * ((largest - most) * scale).exp(),
                   mine = ((scores - most) * scale).exp(), inverse = (before + mine.sum(0)).reciprocal();
  const at::Tensor values = ((mine * inverse).unsqueeze(-1) * over_group(own_v)).sum(0);
  o.out.copy_((by_group(o.out, groups) * (before * inverse).unsqueeze(-1) + values).flatten(2, 3));
  o.rows.copy_(at::stack({most.flatten(2, 3), inverse.flatten(2, 3)}, -1).transpose(1, 2));
}

at::Tensor own_scores(const at::Tensor& q, const at::Tensor& own_k) {
  return (by_group(q, own_k.size(3)) * over_group(own_k)).sum(-1);
}

struct DiagonalAttention : torch::autograd::Function<DiagonalAttention> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, const at::Tensor& own_k, const at::Tensor& own_v, double scale) {
    Outputs o = run(q, k, v, static_cast<float>(scale));
    merge_own(o, own_scores(q, own_k), own_v, scale);
    context->saved_data["scale"] = scale;
    context->save_for_backward({q, k, v, o.out, o.rows, own_k, own_v});
    return o.out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list upstream) {
    const auto saved = context->get_saved_variables();
    const double scale = context->saved_data["scale"].toDouble();
    const at::Tensor &q = saved[0], &rows = saved[4], &own_k = saved[5], &own_v = saved[6],
                     dout = upstream[0].contiguous();
    const int64_t groups = own_k.size(3);
    const CausalGradients d = causal_gradients(saved, dout, static_cast<float>(scale));
    const auto row_value = [&](int64_t i) { return by_group(rows.select(-1, i).transpose(1, 2), groups); };
    const at::Tensor p = ((own_scores(q, own_k) - row_value(0)) * scale).exp() * row_value(1);  // [N, B, S, G, H / G]
    const at::Tensor grouped = by_group(dout, groups), inner = (grouped * by_group(saved[3], groups)).sum(-1);
    const at::Tensor ds = p * ((grouped * over_group(own_v)).sum(-1) - inner) * scale;
    const at::Tensor dq = d.q + (ds.unsqueeze(-1) * over_group(own_k)).sum(0).flatten(2, 3);
    return {dq,          d.k, d.v, (ds.unsqueeze(-1) * by_group(q, groups)).sum(4), (p.unsqueeze(-1) * grouped).sum(4),
            at::Tensor()};
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

at::Tensor diagonal_attention(const at::Tensor& q, const KeysValues& causal, const std::vector<KeysValues>& own,
                              double scale) {
  const double factor = scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(q.size(3)));
  std::vector<at::Tensor> keys, values;
  for (const KeysValues& pair : own) keys.push_back(pair.k), values.push_back(pair.v);
  const at::Tensor own_k = at::stack(keys), own_v = at::stack(values), queries = q.contiguous();
  at::Tensor k = unit_inner(causal.k), v = unit_inner(causal.v);
  if (k.strides() != v.strides()) k = k.contiguous(), v = v.contiguous();
  return DiagonalAttention::apply(queries, k, v, own_k, own_v, factor);
}

}  // namespace specdec::kernels::cpu
