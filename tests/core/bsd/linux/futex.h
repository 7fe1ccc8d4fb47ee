#error <linux/futex.h> is Linux's
