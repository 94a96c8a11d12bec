// Folds that are rare enough to go one element at a time. Included once per vector level, in its namespace.

// Tells whether a product lost digits: it overflowed or is denormal, or it is 0 although no factor is.
template <class Real>
inline bool is_lossy(Real product, Real a, Real b) {
  const Real size = product < 0 ? -product : product;
  using Limits = std::numeric_limits<Real>;
  // No short circuit: branches cost more than they save here.
  return !((size >= Limits::min()) & (size <= Limits::max())) & (a != 0) & (b != 0);
}

// The product of complex numbers, part by part.
template <Dtype real_dtype, class Real, class Wide, Accumulate accumulate>
void complex_product(const void* const* sources, const Arithmetic& fold, void* const* targets,
                     std::size_t target_count, std::size_t begin, std::size_t end, bool) {
  for (std::size_t at = begin; at < end; ++at) {
    const Real* first = static_cast<const Real*>(sources[0]) + 2 * at;
    Wide real = first[0], imaginary = first[1];
    bool loses = false;
    for (std::size_t r = 1; r < fold.count; ++r) {
      const Real* factor = static_cast<const Real*>(sources[r]) + 2 * at;
      const Wide x = factor[0], y = factor[1];
      const Wide terms[] = {real * x, imaginary * y, real * y, imaginary * x};
      if constexpr (accumulate == Accumulate::wide) {
        loses |= is_lossy(terms[0], real, x) | is_lossy(terms[1], imaginary, y) | is_lossy(terms[2], real, y) |
                 is_lossy(terms[3], imaginary, x);
      }
      real = terms[0] - terms[1];
      imaginary = terms[2] + terms[3];
    }
    if constexpr (accumulate == Accumulate::wide) {
      if (loses || !(real - real == 0) || !(imaginary - imaginary == 0)) {
        const Parts again = settle_complex_product(real_dtype, sources, fold.count, at);
        real = again.real;
        imaginary = again.imaginary;
      }
    }
    for (std::size_t t = 0; t < target_count; ++t) {
      Real* target = static_cast<Real*>(targets[t]) + 2 * at;
      target[0] = static_cast<Real>(real);
      target[1] = static_cast<Real>(imaginary);
    }
  }
}

template <bool is_signed>
void wide_integer_mean(const void* const* sources, const Arithmetic& fold, void* const* targets,
                       std::size_t target_count, std::size_t begin, std::size_t end, bool) {
  for (std::size_t at = begin; at < end; ++at) {
    const double mean = integer_mean(sources, fold.count, at, is_signed);
    for (std::size_t t = 0; t < target_count; ++t) static_cast<double*>(targets[t])[at] = mean;
  }
}

// Σwx/Σw in float64, clamped to the hull. Complex numbers come as twice as many reals.
template <Dtype dtype, class Format, class Result>
void weighted_mean(const void* const* sources, const Arithmetic& fold, void* const* targets, std::size_t target_count,
                   std::size_t begin, std::size_t end, bool) {
  using Element = typename Format::Element;
  for (std::size_t at = begin; at < end; ++at) {
    double total = 0, low = 0, high = 0;
    for (std::size_t r = 0; r < fold.count; ++r) {
      const double value = static_cast<double>(Format::template load<1>(static_cast<const Element*>(sources[r]) + at));
      const double part = fold.weights[r] * value;
      total = r ? total + part : part;
      low = r ? smaller(low, value) : value;
      high = r ? larger(high, value) : value;
    }
    total /= fold.weight_sum;
    if (!(total - total == 0)) total = settle_weighted(dtype, sources, fold, at);
    // A mean lies within its values; roundings of the sum and of the weights can put it a last digit beyond.
    total = total < low ? low : total > high ? high : total;
    using Value = typename Result::Value;
    constexpr bool is_rounded_again = sizeof(typename Result::Element) < sizeof(Value);
    const Value narrow = is_rounded_again ? round_to_odd<Value>(total) : static_cast<Value>(total);
    const auto out = Result::template pack<1>(narrow);
    for (std::size_t t = 0; t < target_count; ++t) static_cast<typename Result::Element*>(targets[t])[at] = out;
  }
}
