def reverse(head):
    prev = None
    while head:
        head.next, prev, head = prev, head, head.next
    return prev
def cycle(head):
    slow = fast = head
    while fast and fast.next:
        slow, fast = slow.next, fast.next.next
        if slow is fast: return True
    return False
