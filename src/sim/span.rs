//! Random durations in a simulated world.

use std::time::Duration;

/// Bounds of a random time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    least: Duration,
    most: Duration,
    rarely: Duration,
}

/// One draw in this many comes from the tail of a [`Span`].
const RARELY: u32 = 100;

impl Span {
    /// No time at all.
    pub const NONE: Self = Self::exactly(Duration::ZERO);

    /// Always the same.
    pub const fn exactly(time: Duration) -> Self {
        Self::between(time, time)
    }

    /// Between these two.
    pub const fn between(least: Duration, most: Duration) -> Self {
        Self { least, most, rarely: most }
    }

    /// Between these, in milliseconds.
    pub const fn millis(least: u64, most: u64) -> Self {
        Self::between(Duration::from_millis(least), Duration::from_millis(most))
    }

    /// Between these, in seconds.
    pub const fn seconds(least: u64, most: u64) -> Self {
        Self::between(Duration::from_secs(least), Duration::from_secs(most))
    }

    /// The same span, but one draw in a hundred is up to `most`.
    #[must_use]
    pub const fn rarely(self, most: Duration) -> Self {
        Self { rarely: most, ..self }
    }

    /// The longest time that can be drawn.
    pub(super) fn longest(self) -> Duration {
        self.most.max(self.rarely)
    }

    /// Draws a time, to the millisecond. A fixed span draws nothing from `dice`.
    pub(super) fn draw(self, dice: &mut fastrand::Rng) -> Duration {
        if self.least == self.rarely {
            return self.least;
        }
        let tail = self.most < self.rarely && dice.u32(0..RARELY) == 0;
        let (from, to) = if tail { (self.most, self.rarely) } else { (self.least, self.most) };
        let millis = |time: Duration| time.as_millis() as u64;
        Duration::from_millis(dice.u64(millis(from)..=millis(to)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn draws_stay_in_their_span_and_once_in_a_while_in_its_tail() {
        let span = Span::between(seconds(1), seconds(2)).rarely(seconds(9));
        let mut dice = fastrand::Rng::with_seed(1);
        let draws: Vec<Duration> = (0..2_000).map(|_| span.draw(&mut dice)).collect();
        assert!(draws.iter().all(|draw| (seconds(1)..=seconds(9)).contains(draw)));
        let rare = draws.iter().filter(|draw| **draw > seconds(2)).count();
        assert!((5..60).contains(&rare), "{rare}");
    }

    #[test]
    fn what_is_always_the_same_moves_no_dice() {
        let mut dice = fastrand::Rng::with_seed(1);
        assert_eq!(Span::exactly(seconds(3)).draw(&mut dice), seconds(3));
        assert_eq!(dice, fastrand::Rng::with_seed(1));
    }
}
